{# Few rows of a times a packed weight: LANES lanes walk the same R rows of it side by side, U words
   at a load, each for M_TILE rows of a; then the partial sums are added.

   UNITS: loads of a row. QUADS: a is bound as vec4, else its elements are read one by one. EDGE: the
   last load reaches past K. PER: what shares a scale, "unit", "word" or "quad". A workgroup serves
   SLICES * R rows; tiles of M_TILE rows cover M (TILED: more than one). A group's codes are summed as
   floats from 1 to 2 less their center (weights.wgsl), which is exact, and scaled once. #}
{% from "matmul/operands.wgsl" import at, step, load, store, functions with context %}
{% from "quant/weights.wgsl" import quant_functions, POWER with context %}
{% set OUTS = M_TILE * R %}
{# Sums to an element of the result (PAIRS: two), and elements that the group stores for a row of a. #}
{% set GROUP = 2 if PAIRS else 1 %}
{% set STORED = R // GROUP %}
{% set LEFT = [LANES // 8, 1] | max if LANES <= 64 else 16 %}
{% set PER_WORD = 32 // Q.bits // 4 %}
{% macro x_at(i, k4) -%}
{% if A.vector %}
{% set value = load(A, "a%d" % i ~ step(A, 2, k4)) %}
{{ "select(vec4<f32>(), %s, (%s) * 4u < %s)" % (value, k4, K) if EDGE else value }}
{%- else -%}
vec4<f32>(
{%- for c in range(4) %}
{% set k = "(%s) * 4u + %du" % (k4, c) %}
{% set value = load(A, "a%d" % i ~ step(A, 2, k)) %}
{{ "select(0.0, %s, %s < %s)" % (value, k, K) if EDGE else value }}{{ ", " if not loop.last }}
{%- endfor -%}
)
{%- endif %}
{%- endmacro %}
{# Opens a group at quad k4 (a word's or load's first). #}
{% macro open(k4) %}
        {
        let g = {{ "0u" if Q.groups == 1 else "min((%s) * 4u / %s, %s - 1u)" % (k4, p("GROUP"), GROUPS) }};
{% for r in range(R) %}
        let c{{ r }} = vec4<f32>({{ "1.0" if Q.zeros == "offsets" else "center_of(n%d, g)" % r }});
{% for i in range(M_TILE) %}
        var t{{ i }}_{{ r }} = 0.0;
{% endfor %}{% endfor %}
{% if Q.zeros == "offsets" %}
{% for i in range(M_TILE) %}
        var x_sum{{ i }} = 0.0;
{% endfor %}
{% endif %}
{% endmacro %}
{% macro close() %}
{% for r in range(R) %}
        let s{{ r }} = scale_of(n{{ r }}, g) * {{ POWER }}.0;
{% for i in range(M_TILE) %}
        sum{{ i }}_{{ r }} += s{{ r }} * t{{ i }}_{{ r }}{{ " + offset_of(n%d, g) * x_sum%d" % (r, i) if Q.zeros == "offsets" }};
{% endfor %}{% endfor %}
        }
{% endmacro %}
var<workgroup> partial: array<array<f32, {{ WG_X }}>, {{ OUTS }}>;
{{ quant_functions() }}
{{ functions() }}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let group = workgroup.x + workgroup.y * groups.x;
    let m_tiles = {{ "(%s + %du) / %du" % (M, M_TILE - 1, M_TILE) if TILED else "1u" }};
    let blocks = ({{ N }} + {{ SLICES * R - 1 }}u) / {{ SLICES * R }}u;
    if (group >= m_tiles * blocks) { return; }
    // Workgroups that run at the same time share rows of the weight: it is the large factor.
    let m0 = {{ "group %% m_tiles * %du" % M_TILE if TILED else "0u" }};
    let block = group / m_tiles;
    let batch = 0u;
    let slice = lane / {{ LANES }}u;
    let first = lane % {{ LANES }}u;
    let n_first = (block * {{ SLICES }}u + slice) * {{ R }}u;
    // Rows past the end are read as the last row, and not stored.
{% for i in range(M_TILE) %}
    let a{{ i }} = {{ at(A, ["", "min(m0 + %du, %s - 1u)" % (i, M), ""]) }};
{% endfor %}
{% for r in range(R) %}
    let n{{ r }} = min(n_first + {{ r }}u, {{ N }} - 1u);
    let w{{ r }} = n{{ r }} * ({{ WORDS }} / {{ U }}u);
{% endfor %}
{% for i in range(M_TILE) %}{% for r in range(R) %}
    var sum{{ i }}_{{ r }} = 0.0;
{% endfor %}{% endfor %}
    for (var unit = first; unit < {{ UNITS }}; unit += {{ LANES }}u) {
{% for r in range(R) %}
        let load{{ r }} = weight[w{{ r }} + unit];
{% endfor %}
        let k4 = unit * {{ U * PER_WORD }}u;
{{ open("k4") if PER == "unit" }}
{% for u in range(U) %}
{{ open("k4 + %du" % (u * PER_WORD)) if PER == "word" }}
{% for q in range(PER_WORD) %}
{% set quad = "k4 + %du" % (u * PER_WORD + q) %}
{{ open(quad) if PER == "quad" }}
        {
{% for r in range(R) %}
            let q{{ r }} = four({{ "load%d" % r ~ ("[%d]" % u if U > 1 else "") }}{{ " >> 4u" if q }}) - c{{ r }};
{% endfor %}
{% for i in range(M_TILE) %}
            let x{{ i }} = {{ x_at(i, quad) }};
{% if Q.zeros == "offsets" %}
            x_sum{{ i }} += dot(x{{ i }}, vec4<f32>(1.0));
{% endif %}
{% for r in range(R) %}
            t{{ i }}_{{ r }} += dot(x{{ i }}, q{{ r }});
{% endfor %}{% endfor %}
        }
{{ close() if PER == "quad" }}
{% endfor %}
{{ close() if PER == "word" }}
{% endfor %}
{{ close() if PER == "unit" }}
    }
{% for i in range(M_TILE) %}{% for r in range(R) %}
    partial[{{ i * R + r }}][lane] = sum{{ i }}_{{ r }};
{% endfor %}{% endfor %}
    workgroupBarrier();
    // Two rounds of several additions each: a barrier costs more than a few reads.
    if (first < {{ LEFT }}u) {
{% for o in range(OUTS) %}
        partial[{{ o }}][lane] +=
{% for part in range(1, LANES // LEFT) %}
            {{ "+ " if not loop.first }}partial[{{ o }}][lane + {{ part * LEFT }}u]{{ ";" if loop.last }}
{% endfor %}
{% endfor %}
    }
    workgroupBarrier();
    let m = m0 + first / {{ STORED }}u;
    let n = n_first{{ " / 2u" if PAIRS }} + first % {{ STORED }}u;
    if (first < {{ M_TILE * STORED }}u && m < {{ M }} && n < {{ N }}{{ " / 2u" if PAIRS }}) {
        let start = slice * {{ LANES }}u;
{% for o in range(GROUP) %}
        let total{{ o }} = partial[first * {{ GROUP }}u + {{ o }}u][start]
{%- for part in range(1, LEFT) %}

            + partial[first * {{ GROUP }}u + {{ o }}u][start + {{ part }}u]
{%- endfor %};
{% endfor %}
        {{ store("m * %s + n" % OUT_N, "finish(total0, %sbatch, m, n)" % ("total1, " if PAIRS else "")) }}
    }
}
