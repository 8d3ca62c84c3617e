{# One workgroup normalises one row of DIM elements: y = (x - mean) / sqrt(variance + EPS) * weight
   + bias, and gives the mean and the factor. The mean is taken first, then the variance around it
   and what it was off by: so rows far from zero keep their digits. VEC: elements a lane moves at
   once. WEIGHT, BIAS: whether there is one. X, W, B, Y, M, R: codecs of halves.wgsl. #}
{% from "halves.wgsl" import half_functions, read, quad, write_one %}
{% set x_at = read("x", X, VEC == 4, "start + i") %}
{{ half_functions([X, W, B, Y, M, R]) }}
var<workgroup> partial: array<vec2<f32>, {{ WG_X }}>;
{% macro fold() %}
    workgroupBarrier();
{% set ns = namespace(half=WG_X // 2) %}
{% for _ in range(WG_X.bit_length() - 1) %}
    if (lane < {{ ns.half }}u) { partial[lane] += partial[lane + {{ ns.half }}u]; }
    workgroupBarrier();
{% set ns.half = ns.half // 2 %}
{% endfor %}
{% endmacro %}

@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = workgroup.x + workgroup.y * groups.x;
    if (row >= {{ ROWS }}) { return; }
    let start = {{ START }} + row * {{ ROW_STRIDE }};
    let count = f32({{ DIM }} * {{ VEC }}u);
    var total = 0.0;
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
        total += {{ "dot(%s, vec4<f32>(1.0))" % x_at if VEC == 4 else x_at }};
    }
    partial[lane] = vec2<f32>(total, 0.0);
{{ fold() }}
    let about = partial[0].x / count;
    workgroupBarrier();
    var rest = 0.0;
    var squares = 0.0;
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
        let value = {{ x_at }} - about;
        rest += {{ "dot(value, vec4<f32>(1.0))" if VEC == 4 else "value" }};
        squares += {{ "dot(value, value)" if VEC == 4 else "value * value" }};
    }
    partial[lane] = vec2<f32>(rest, squares);
{{ fold() }}
    let off = partial[0].x / count;
    let factor = inverseSqrt(max(partial[0].y / count - off * off, 0.0) + {{ EPS }});
    if (lane == 0u) {
        {{ write_one("means", M, "row", "about + off") }}
        {{ write_one("factors", R, "row", "factor") }}
    }
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
        let result = ({{ x_at }} - about - off) * factor
            {{- " * " ~ read("weight", W, VEC == 4, "i + " ~ WEIGHT_START) if WEIGHT }}
            {{- " + " ~ read("bias", B, VEC == 4, "i + " ~ BIAS_START) if BIAS }};
        let at = row * {{ DIM }} + i;
        {{ "y[at] = %s;" % quad(Y, "result") if VEC == 4 else write_one("y", Y, "at", "result") }}
    }
}
