{# One workgroup normalises one row of DIM elements: y = x / sqrt(mean(x^2) + EPS) * weight.
   The row is read twice; the second read comes from the cache. VEC: elements a lane moves at
   once. WEIGHT: whether there is one. X, W, Y: codecs of halves.wgsl. #}
{% from "halves.wgsl" import half_functions, read, quad, write_one %}
{% set x_at = read("x", X, VEC == 4, "start + i") %}
{{ half_functions([X, W, Y]) }}
var<workgroup> partial: array<f32, {{ WG_X }}>;

@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = workgroup.x + workgroup.y * groups.x;
    if (row >= {{ ROWS }}) { return; }
    let start = {{ START }} + row * {{ ROW_STRIDE }};
    var total = 0.0;
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
        let value = {{ x_at }};
        total += {{ "dot(value, value)" if VEC == 4 else "value * value" }};
    }
    partial[lane] = total;
    workgroupBarrier();
{% set ns = namespace(half=WG_X // 2) %}
{% for _ in range(WG_X.bit_length() - 1) %}
    if (lane < {{ ns.half }}u) { partial[lane] += partial[lane + {{ ns.half }}u]; }
    workgroupBarrier();
{% set ns.half = ns.half // 2 %}
{% endfor %}
    let scale = inverseSqrt(partial[0] / f32({{ DIM }} * {{ VEC }}u) + {{ EPS }});
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
        let result = {{ x_at }} * scale{{ " * " ~ read("weight", W, VEC == 4, "i + " ~ WEIGHT_START) if WEIGHT }};
        let at = row * {{ DIM }} + i;
        {{ "y[at] = %s;" % quad(Y, "result") if VEC == 4 else write_one("y", Y, "at", "result") }}
    }
}
