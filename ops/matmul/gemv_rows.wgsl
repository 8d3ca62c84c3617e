{# Few rows of a times w, where w is read along k: LANES lanes walk the same R rows of w side by
   side and split k between them, each for M_TILE rows of a; then the partial sums are added.

   UNITS: k in loads of w, of WIDTH elements: one, or four, or eight of 16 bits (a is then read four
   at a time, or eight as well). A workgroup serves SLICES * R rows of w; tiles of M_TILE rows cover M
   (TILED: more than one). UNROLL: loads of a row in flight at once. PAIRS: two rows of w, side by
   side, give one element of the result; R is even. A lane stores one element: R * M_TILE, half of
   it for pairs, is at most LANES. #}
{% from "matmul/operands.wgsl" import at, step, load, store, functions with context %}
{% set OUTS = M_TILE * R %}
{# Sums to an element of the result, and elements that the group stores for a row of a. #}
{% set GROUP = 2 if PAIRS else 1 %}
{% set STORED = R // GROUP %}
{# Lanes whose sums are left after the first round of adding up: each adds LANES / LEFT. #}
{% set LEFT = [LANES // 8, 1] | max if LANES <= 64 else 16 %}
{% set PARTS = WIDTH // 4 if A.vector else 1 %}
{# What one load of unit k of a row brings: elements, or words that part_of() takes apart. #}
{% macro fetch(o, base, k) -%}
{{ "%s[%s]" % (o.name, base ~ step(o, 2, k)) if o.width == 8 else load(o, base ~ step(o, 2, k)) }}
{%- endmacro %}
{% macro part_of(o, fetched, part) -%}
{{ "%s_quad(%s.%s)" % (o.codec, fetched, ["xy", "zw"][part]) if o.width == 8 else fetched }}
{%- endmacro %}
{# Adds count steps of k, LANES apart from k on, to the sums. #}
{% macro accumulate(count) %}
{% for u in range(count) %}{% for r in range(R) %}
        let w{{ u }}_{{ r }} = {{ fetch(W, "w%d" % r, "k + %du" % (u * LANES)) }};
{% endfor %}{% endfor %}
{% for u in range(count) %}
{% for part in range(PARTS) %}{% for r in range(R) %}
        let y{{ u }}_{{ part }}_{{ r }} = {{ part_of(W, "w%d_%d" % (u, r), part) }};
{% endfor %}{% endfor %}
{% for i in range(M_TILE) %}
{% if A.width == 8 or PARTS == 1 %}
        let a{{ u }}_{{ i }} = {{ fetch(A, "a%d" % i, "k + %du" % (u * LANES)) }};
{% endif %}
{% for part in range(PARTS) %}
{% if A.width == 8 or PARTS == 1 %}
        let x{{ u }}_{{ part }}_{{ i }} = {{ part_of(A, "a%d_%d" % (u, i), part) }};
{% else %}
        let x{{ u }}_{{ part }}_{{ i }} = {{ load(A, "a%d" % i ~ step(A, 2, "(k + %du) * 2u + %du" % (u * LANES, part))) }};
{% endif %}
{% for r in range(R) %}
{% set operands = (u, part, i, u, part, r) %}
        sum{{ i }}_{{ r }} += {{ ("dot(x%d_%d_%d, y%d_%d_%d)" if A.vector else "x%d_%d_%d * y%d_%d_%d") % operands }};
{% endfor %}
{% endfor %}{% endfor %}{% endfor %}
{% endmacro %}
var<workgroup> partial: array<array<f32, {{ WG_X }}>, {{ OUTS }}>;
{{ functions() }}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let group = workgroup.x + workgroup.y * groups.x;
    let m_tiles = {{ "(%s + %du) / %du" % (M, M_TILE - 1, M_TILE) if TILED else "1u" }};
    let blocks = ({{ N }} + {{ SLICES * R - 1 }}u) / {{ SLICES * R }}u;
    if (group >= m_tiles * blocks{{ " * " ~ BATCH if BATCHED }}) { return; }
    // Workgroups that run at the same time share rows of w: it is the large factor.
    let m0 = {{ "group %% m_tiles * %du" % M_TILE if TILED else "0u" }};
    let block = group / m_tiles{{ " % blocks" if BATCHED }};
    let batch = {{ "group / (m_tiles * blocks)" if BATCHED else "0u" }};
    let slice = lane / {{ LANES }}u;
    let first = lane % {{ LANES }}u;
    let n0 = (block * {{ SLICES }}u + slice) * {{ R }}u;
    // Rows past the end are read as the last row, and not stored.
{% for i in range(M_TILE) %}
    let a{{ i }} = {{ at(A, ["batch", "min(m0 + %du, %s - 1u)" % (i, M), ""]) }};
{% endfor %}
{% for r in range(R) %}
    let w{{ r }} = {{ at(W, ["batch", "min(n0 + %du, %s - 1u)" % (r, N), ""]) }};
{% endfor %}
{% for i in range(M_TILE) %}{% for r in range(R) %}
    var sum{{ i }}_{{ r }} = 0.0;
{% endfor %}{% endfor %}
    var k = first;
{% if UNROLL > 1 %}
    for (; k + {{ (UNROLL - 1) * LANES }}u < {{ UNITS }}; k += {{ UNROLL * LANES }}u) {
{{ accumulate(UNROLL) }}
    }
{% endif %}
    for (; k < {{ UNITS }}; k += {{ LANES }}u) {
{{ accumulate(1) }}
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
    let n = n0{{ " / 2u" if PAIRS }} + first % {{ STORED }}u;
    if (first < {{ M_TILE * STORED }}u && m < {{ M }} && n < {{ N }}{{ " / 2u" if PAIRS }}) {
        let start = slice * {{ LANES }}u;
{% for o in range(GROUP) %}
        let total{{ o }} = partial[first * {{ GROUP }}u + {{ o }}u][start]
{%- for part in range(1, LEFT) %}

            + partial[first * {{ GROUP }}u + {{ o }}u][start + {{ part }}u]
{%- endfor %};
{% endfor %}
        {{ store("(batch * %s + m) * %s + n" % (M, OUT_N), "finish(total0, %sbatch, m, n)" % ("total1, " if PAIRS else "")) }}
    }
}
