{# Few rows of a times w, where w is read along n: WG_X lanes side by side hold one column (or four
   neighbours) each, WG_Y slices split k between them; then the partial sums are added.

   UNITS: n in loads (of one element, or of four: w is then bound as vec4). BLOCKS workgroups
   cover UNITS. M is at most M_TILE. #}
{% from "matmul/operands.wgsl" import at, step, load, finish_function with context %}
{% set TYPE = "vec4<f32>" if W.vector else "f32" %}
var<workgroup> partial: array<array<array<{{ TYPE }}, {{ WG_X }}>, {{ WG_Y }}>, {{ M_TILE }}>;
{{ finish_function() }}
@compute @workgroup_size({{ WG_X }}, {{ WG_Y }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
    let group = workgroup.x + workgroup.y * groups.x;
    if (group >= {{ GROUPS }}) { return; }
    let block = group % {{ BLOCKS }};
    let batch = {{ "group / " ~ BLOCKS if BATCHED else "0u" }};
    let unit = block * {{ WG_X }}u + local.x;
    // Rows and columns past the end are read as the last ones, and not stored.
{% for i in range(M_TILE) %}
    let a{{ i }} = {{ at(A, ["batch", "min(%du, %s - 1u)" % (i, M), ""]) }};
    var sum{{ i }} = {{ TYPE }}();
{% endfor %}
    let w0 = {{ at(W, ["batch", "min(unit, %s - 1u)" % UNITS, ""]) }};
    for (var k = local.y; k < {{ K }}; k += {{ WG_Y }}u) {
        let y = {{ load(W, "w0" ~ step(W, 2, "k")) }};
{% for i in range(M_TILE) %}
        sum{{ i }} += {{ load(A, "a%d" % i ~ step(A, 2, "k")) }} * y;
{% endfor %}
    }
{% for i in range(M_TILE) %}
    partial[{{ i }}][local.y][local.x] = sum{{ i }};
{% endfor %}
    workgroupBarrier();
{% set ns = namespace(half=WG_Y // 2) %}
{% for _ in range(WG_Y.bit_length() - 1) %}
    if (local.y < {{ ns.half }}u) {
{% for i in range(M_TILE) %}
        partial[{{ i }}][local.y][local.x] += partial[{{ i }}][local.y + {{ ns.half }}u][local.x];
{% endfor %}
    }
    workgroupBarrier();
{% set ns.half = ns.half // 2 %}
{% endfor %}
    let m = local.y;
    if (local.y < {{ M_TILE }}u && m < {{ M }} && unit < {{ UNITS }}) {
        let total = partial[local.y][0][local.x];
        let row = (batch * {{ M }} + m) * {{ OUT_N }};
{% if W.vector %}
        let n = unit * 4u;
{% for c in range(4) %}
        out[row + n + {{ c }}u] = finish(total[{{ c }}], batch, m, n + {{ c }}u);
{% endfor %}
{% else %}
        out[row + unit] = finish(total, batch, m, unit);
{% endif %}
    }
}
