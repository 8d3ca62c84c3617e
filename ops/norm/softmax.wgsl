{# One workgroup a row of DIM elements: the largest, then the sum of exp(x - largest), then the
   quotients (LOG: the difference to the logarithm of the sum). X, Y: codecs of halves.wgsl; results
   of 16 bits are written in pairs, or one by one (ALONE). #}
{% from "halves.wgsl" import half_functions, read, word, write_one %}
{% set x_at = read("x", X, false, "start + i") %}
{{ half_functions([X, Y]) }}
var<workgroup> partial: array<f32, {{ WG_X }}>;
{% macro fold(expression) %}
    workgroupBarrier();
{% set ns = namespace(half=WG_X // 2) %}
{% for _ in range(WG_X.bit_length() - 1) %}
    if (lane < {{ ns.half }}u) {
        let a = partial[lane];
        let b = partial[lane + {{ ns.half }}u];
        partial[lane] = {{ expression }};
    }
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
    var largest = -3.4028234663852886e38;
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
        largest = max(largest, {{ x_at }});
    }
    partial[lane] = largest;
{{ fold("max(a, b)") }}
    let top = partial[0];
    workgroupBarrier();
    var total = 0.0;
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
        total += exp(max({{ x_at }} - top, -104.0));
    }
    partial[lane] = total;
{{ fold("a + b") }}
    let sum = partial[0];
{% macro result(element) -%}
{% set x_there = read("x", X, false, "start + %s" % element) %}
{{ "%s - top - log(sum)" % x_there if LOG else "exp(max(%s - top, -104.0)) / sum" % x_there }}
{%- endmacro %}
{% if Y and not ALONE %}
    for (var i = 2u * lane; i < {{ DIM }}; i += {{ 2 * WG_X }}u) {
        y[(row * {{ DIM }} + i) >> 1u] = {{ word(Y, result("i"), result("i + 1u")) }};
    }
{% else %}
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
        let at = row * {{ DIM }} + i;
        {{ write_one("y", Y, "at", result("i")) }}
    }
{% endif %}
}
