{# Few rows of a times w, where w is read along k: LANES lanes walk the same R rows of w side by
   side and split k between them, each for M_TILE rows of a; then the partial sums are added.

   UNITS: k in loads (of one element, or of four: both operands are then bound as vec4).
   A workgroup serves SLICES * R rows of w; Tiles of M_TILE rows cover M (TILED: more than one). UNROLL: loads of a row in flight at once. R * M_TILE is at most LANES. #}
{% from "matmul/operands.wgsl" import at, step, load, finish_function with context %}
{% set OUTS = M_TILE * R %}
{# Lanes whose sums are left after the first round of adding up: each adds LANES / LEFT. #}
{% set LEFT = [LANES // 8, 1] | max if LANES <= 64 else 16 %}
{# Adds count steps of k, LANES apart from k on, to the sums. #}
{% macro accumulate(count) %}
{% for u in range(count) %}{% for r in range(R) %}
        let y{{ u }}_{{ r }} = {{ load(W, "w%d" % r ~ step(W, 2, "k + %du" % (u * LANES))) }};
{% endfor %}{% endfor %}
{% for u in range(count) %}{% for i in range(M_TILE) %}
        let x{{ u }}_{{ i }} = {{ load(A, "a%d" % i ~ step(A, 2, "k + %du" % (u * LANES))) }};
{% for r in range(R) %}
        sum{{ i }}_{{ r }} += {{ ("dot(x%d_%d, y%d_%d)" if A.vector else "x%d_%d * y%d_%d") % (u, i, u, r) }};
{% endfor %}
{% endfor %}{% endfor %}
{% endmacro %}
var<workgroup> partial: array<array<f32, {{ WG_X }}>, {{ OUTS }}>;
{{ finish_function() }}
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
    let m = m0 + first / {{ R }}u;
    let n = n0 + first % {{ R }}u;
    if (first < {{ OUTS }}u && m < {{ M }} && n < {{ N }}) {
        let start = slice * {{ LANES }}u;
        let total = partial[first][start]
{%- for part in range(1, LEFT) %}

            + partial[first][start + {{ part }}u]
{%- endfor %};
        out[(batch * {{ M }} + m) * {{ OUT_N }} + n] = finish(total, batch, m, n);
    }
}
