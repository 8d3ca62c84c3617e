{# One workgroup finds where the largest (KIND: argmin, the smallest) element of a row of DIM is, the
   first of equals. A lane that has seen none holds the index NOBODY. X: codec of halves.wgsl. #}
{% from "halves.wgsl" import half_functions, read %}
{{ half_functions([X]) }}
const NOBODY = 0xffffffffu;
var<workgroup> values: array<f32, {{ WG_X }}>;
var<workgroup> places: array<u32, {{ WG_X }}>;

@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = workgroup.x + workgroup.y * groups.x;
    if (row >= {{ ROWS }}) { return; }
    let start = {{ START }} + row * {{ ROW_STRIDE }};
    var best = 0.0;
    var place = NOBODY;
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
        let value = {{ read("x", X, false, "start + i") }};
        if (place == NOBODY || value {{ "<" if KIND == "argmin" else ">" }} best) {
            best = value;
            place = i;
        }
    }
    values[lane] = best;
    places[lane] = place;
    workgroupBarrier();
{% set ns = namespace(half=WG_X // 2) %}
{% for _ in range(WG_X.bit_length() - 1) %}
    if (lane < {{ ns.half }}u) {
        let mine = values[lane];
        let other = values[lane + {{ ns.half }}u];
        let there = places[lane + {{ ns.half }}u];
        let better = other {{ "<" if KIND == "argmin" else ">" }} mine;
        let earlier = other == mine && there < places[lane];
        if (there != NOBODY && (places[lane] == NOBODY || better || earlier)) {
            values[lane] = other;
            places[lane] = there;
        }
    }
    workgroupBarrier();
{% set ns.half = ns.half // 2 %}
{% endfor %}
    if (lane == 0u) { y[row] = i32(places[0]); }
}
