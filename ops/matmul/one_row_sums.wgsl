{# The end of the kernels for one row: lanes' sums meet in workgroup memory, and one lane a result
   stores it. Import "with context".

   SLICES groups of LANES lanes, R sums a lane, row_sum0 ..., of which ROUND at a time go through the
   memory, and with NORM squares in the first round. SPLIT: a slice's lanes have squared a share of the
   row only, all slices the whole of it. PAIRS: two sums give one result. first, slice, n_first: of the
   lane. #}
{% from "matmul/operands.wgsl" import store with context %}
{# Each sum is added up by PARTS lanes, then by one. PITCH: lanes side by side meet in no bank. #}
{% set PARTS = [8, LANES] | min %}
{% set PITCH = LANES + 8 %}
{% set GROUP_ROWS = 2 if PAIRS else 1 %}
{% set SUMS = ROUND + 1 if NORM else ROUND %}
{% macro sums_memory() -%}
var<workgroup> partial: array<f32, {{ SLICES * SUMS * PITCH }}>;
{%- endmacro %}
{# Sum number ``sum`` of slice ``of``, once PARTS are left of it. #}
{% macro total(of, sum) -%}
{%- for part in range(PARTS) -%}
partial[({{ of }} * {{ SUMS }}u + {{ sum }}) * {{ PITCH }}u + {{ part }}u]{{ " + " if not loop.last }}
{%- endfor -%}
{%- endmacro %}
{% macro add_up() %}
{% if NORM %}
    var root = 0.0;
{% endif %}
{% for begin in range(0, R, ROUND) %}
{% set sums = SUMS if NORM and begin == 0 else ROUND %}
{% if begin %}
    workgroupBarrier();
{% endif %}
{% for r in range(ROUND) %}
    partial[(slice * {{ SUMS }}u + {{ r }}u) * {{ PITCH }}u + first] = row_sum{{ begin + r }};
{% endfor %}
{% if sums > ROUND %}
    partial[(slice * {{ SUMS }}u + {{ ROUND }}u) * {{ PITCH }}u + first] = squares;
{% endif %}
    workgroupBarrier();
{% for round in range((sums * PARTS + LANES - 1) // LANES) %}
    {
        let task = first + {{ round * LANES }}u;
        {{ "if (task < %du) " % (sums * PARTS) if (round + 1) * LANES > sums * PARTS }}{
            let at = (slice * {{ SUMS }}u + task / {{ PARTS }}u) * {{ PITCH }}u + task % {{ PARTS }}u;
            partial[at] = partial[at]
{%- for part in range(1, LANES // PARTS) %}

                + partial[at + {{ part * PARTS }}u]
{%- endfor %};
        }
    }
{% endfor %}
    workgroupBarrier();
    if (first < {{ ROUND // GROUP_ROWS }}u) {
{% if sums > ROUND %}
        root = inverseSqrt((
{%- for s in range(SLICES if SPLIT else 1) -%}
{{ " + " if s }}{{ total("%du" % s if SPLIT else "slice", "%du" % ROUND) }}
{%- endfor -%}
) / f32({{ K }}) + {{ NORM_EPS }});
{% endif %}
        let n = {{ "(n_first + %du) / 2u" % begin if PAIRS else "n_first + %du" % begin }} + first;
        if (n < {{ N }}{{ " / 2u" if PAIRS }}) {
{% for o in range(GROUP_ROWS) %}
            let total{{ o }} = {{ "root * " if NORM }}({{ total("slice", "first * %du + %du" % (GROUP_ROWS, o)) }});
{% endfor %}
            {{ store("n", "finish(total0, %sbatch, m, n)" % ("total1, " if PAIRS else "")) }}
        }
    }
{% endfor %}
{% endmacro %}
