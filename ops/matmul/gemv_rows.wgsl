{# Few rows of a times w, where w is read along k: LANES lanes walk the same R rows of w side by
   side and split k between them, each for M_TILE rows of a; then the partial sums are added.

   UNITS: k in loads (of one element, or of four: both operands are then bound as vec4).
   A workgroup serves SLICES * R rows of w; BLOCKS workgroups cover N. M is at most M_TILE.
   SUBGROUPS: lanes add up through subgroups (LANES is then the whole workgroup). #}
{% from "matmul/operands.wgsl" import at, step, load, finish_function with context %}
{% set OUTS = M_TILE * R %}
{% set VEC = A.vector %}
var<workgroup> partial: array<array<f32, {{ WG_X }}>, {{ OUTS }}>;
{{ finish_function() }}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let group = workgroup.x + workgroup.y * groups.x;
    if (group >= {{ GROUPS }}) { return; }
    let block = group % {{ BLOCKS }};
    let batch = {{ "group / " ~ BLOCKS if BATCHED else "0u" }};
    let slice = lane / {{ LANES }}u;
    let first = lane % {{ LANES }}u;
    let n0 = (block * {{ SLICES }}u + slice) * {{ R }}u;
    // Rows past the end are read as the last row, and not stored.
{% for i in range(M_TILE) %}
    let a{{ i }} = {{ at(A, ["batch", "min(%du, %s - 1u)" % (i, M), ""]) }};
{% endfor %}
{% for r in range(R) %}
    let w{{ r }} = {{ at(W, ["batch", "min(n0 + %du, %s - 1u)" % (r, N), ""]) }};
{% endfor %}
{% for i in range(M_TILE) %}{% for r in range(R) %}
    var sum{{ i }}_{{ r }} = 0.0;
{% endfor %}{% endfor %}
{% macro accumulate(count) %}
{% for u in range(count) %}{% for r in range(R) %}
        let y{{ u }}_{{ r }} = {{ load(W, "w%d" % r ~ step(W, 2, "k + %du" % (u * LANES))) }};
{% endfor %}{% endfor %}
{% for u in range(count) %}
{% for i in range(M_TILE) %}
        let x{{ u }}_{{ i }} = {{ load(A, "a%d" % i ~ step(A, 2, "k + %du" % (u * LANES))) }};
{% for r in range(R) %}
        sum{{ i }}_{{ r }} += {{ ("dot(x%d_%d, y%d_%d)" if VEC else "x%d_%d * y%d_%d") % (u, i, u, r) }};
{% endfor %}
{% endfor %}
{% endfor %}
{% endmacro %}
    var k = first;
{% if UNROLL > 1 %}
    for (; k + {{ (UNROLL - 1) * LANES }}u < {{ UNITS }}; k += {{ UNROLL * LANES }}u) {
{{ accumulate(UNROLL) }}
    }
{% endif %}
    for (; k < {{ UNITS }}; k += {{ LANES }}u) {
{{ accumulate(1) }}
    }
{% if SUBGROUPS %}
    // The first lane of each subgroup leaves its sum where it stands; after the barrier every
    // subgroup adds up all of them. Ranks are counted, so neither the size of subgroups nor which
    // lanes make one up matters.
    let rank = subgroupExclusiveAdd(1u);
    let peers = subgroupAdd(1u);
{% for i in range(M_TILE) %}{% for r in range(R) %}
    let part{{ i }}_{{ r }} = subgroupAdd(sum{{ i }}_{{ r }});
    partial[{{ i * R + r }}][lane] = select(0.0, part{{ i }}_{{ r }}, rank == 0u);
{% endfor %}{% endfor %}
    workgroupBarrier();
{% for o in range(OUTS) %}
    var total{{ o }} = 0.0;
{% endfor %}
    for (var at = 0u; at < {{ WG_X }}u; at += peers) {
        let from_lane = min(at + rank, {{ WG_X - 1 }}u);
        let inside = at + rank < {{ WG_X }}u;
{% for o in range(OUTS) %}
        total{{ o }} += select(0.0, partial[{{ o }}][from_lane], inside);
{% endfor %}
    }
{% for o in range(OUTS) %}
    total{{ o }} = subgroupAdd(total{{ o }});
{% endfor %}
    if (lane < {{ OUTS }}u) {
        var total = total0;
{% for o in range(1, OUTS) %}
        if (lane == {{ o }}u) { total = total{{ o }}; }
{% endfor %}
        let m = lane / {{ R }}u;
        let n = n0 + lane % {{ R }}u;
{% else %}
{% for i in range(M_TILE) %}{% for r in range(R) %}
    partial[{{ i * R + r }}][lane] = sum{{ i }}_{{ r }};
{% endfor %}{% endfor %}
    workgroupBarrier();
{% set ns = namespace(half=LANES // 2) %}
{% for _ in range(LANES.bit_length() - 1) %}
    if (first < {{ ns.half }}u) {
{% for o in range(OUTS) %}
        partial[{{ o }}][lane] += partial[{{ o }}][lane + {{ ns.half }}u];
{% endfor %}
    }
    workgroupBarrier();
{% set ns.half = ns.half // 2 %}
{% endfor %}
    if (first < {{ OUTS }}u) {
        let total = partial[first][slice * {{ LANES }}u];
        let m = first / {{ R }}u;
        let n = n0 + first % {{ R }}u;
{% endif %}
        if (m < {{ M }} && n < {{ N }}) {
            out[(batch * {{ M }} + m) * {{ OUT_N }} + n] = finish(total, batch, m, n);
        }
    }
}
