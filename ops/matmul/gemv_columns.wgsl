{# Few rows of a times w, where w is read along n: WG_X lanes side by side hold one column (or four
   neighbours) each, WG_Y slices split k between them; then the partial sums are added.

   UNITS: n in loads (of one element, or of four: w is then bound as such). Tiles of
   M_TILE rows (at most WG_Y) cover M (TILED: more than one). UNROLL: loads in flight at once.
   LEFT: slices whose sums are left after the first round of adding up. #}
{% from "matmul/operands.wgsl" import at, step, load, store, functions with context %}
{% set TYPE = "vec4<f32>" if W.vector else "f32" %}
{% macro accumulate(count) %}
{% for u in range(count) %}
        let y{{ u }} = {{ load(W, "w0" ~ step(W, 2, "k + %du" % (u * WG_Y))) }};
{% endfor %}
{% for u in range(count) %}{% for i in range(M_TILE) %}
        sum{{ i }} += {{ load(A, "a%d" % i ~ step(A, 2, "k + %du" % (u * WG_Y))) }} * y{{ u }};
{% endfor %}{% endfor %}
{% endmacro %}
var<workgroup> partial: array<array<array<{{ TYPE }}, {{ WG_X }}>, {{ WG_Y }}>, {{ M_TILE }}>;
{{ functions() }}
@compute @workgroup_size({{ WG_X }}, {{ WG_Y }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
    let group = workgroup.x + workgroup.y * groups.x;
    let m_tiles = {{ "(%s + %du) / %du" % (M, M_TILE - 1, M_TILE) if TILED else "1u" }};
    let blocks = ({{ UNITS }} + {{ WG_X - 1 }}u) / {{ WG_X }}u;
    if (group >= m_tiles * blocks{{ " * " ~ BATCH if BATCHED }}) { return; }
    // Workgroups that run at the same time share columns of w: it is the large factor.
    let m0 = {{ "group %% m_tiles * %du" % M_TILE if TILED else "0u" }};
    let block = group / m_tiles{{ " % blocks" if BATCHED }};
    let batch = {{ "group / (m_tiles * blocks)" if BATCHED else "0u" }};
    let unit = block * {{ WG_X }}u + local.x;
    // Rows and columns past the end are read as the last ones, and not stored.
{% for i in range(M_TILE) %}
    let a{{ i }} = {{ at(A, ["batch", "min(m0 + %du, %s - 1u)" % (i, M), ""]) }};
    var sum{{ i }} = {{ TYPE }}();
{% endfor %}
    let w0 = {{ at(W, ["batch", "min(unit, %s - 1u)" % UNITS, ""]) }};
    var k = local.y;
    for (; k + {{ (UNROLL - 1) * WG_Y }}u < {{ K }}; k += {{ UNROLL * WG_Y }}u) {
{{ accumulate(UNROLL) }}
    }
    for (; k < {{ K }}; k += {{ WG_Y }}u) {
{{ accumulate(1) }}
    }
{% for i in range(M_TILE) %}
    partial[{{ i }}][local.y][local.x] = sum{{ i }};
{% endfor %}
    workgroupBarrier();
    // Two rounds of several additions each: a barrier costs more than a few reads.
    if (local.y < {{ LEFT }}u) {
{% for i in range(M_TILE) %}
        partial[{{ i }}][local.y][local.x] +=
{% for part in range(1, WG_Y // LEFT) %}
            {{ "+ " if not loop.first }}partial[{{ i }}][local.y + {{ part * LEFT }}u][local.x]{{ ";" if loop.last }}
{% endfor %}
{% endfor %}
    }
    workgroupBarrier();
    let m = m0 + local.y;
    if (local.y < {{ M_TILE }}u && m < {{ M }} && unit < {{ UNITS }}) {
        let total = partial[local.y][0][local.x]
{%- for part in range(1, LEFT) %}

            + partial[local.y][{{ part }}][local.x]
{%- endfor %};
        let row = (batch * {{ M }} + m) * {{ OUT_N }};
{% if W.vector %}
        let n = unit * 4u;
{% for c in range(4) %}
        {{ store("row + n + %du" % c, "finish(total[%d], batch, m, n + %du)" % (c, c)) }}
{% endfor %}
{% else %}
        {{ store("row + unit", "finish(total, batch, m, unit)") }}
{% endif %}
    }
}
