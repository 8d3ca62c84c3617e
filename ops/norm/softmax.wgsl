{# One workgroup a row of DIM elements: the largest, then the sum of exp(x - largest), then the
   quotients (LOG: the difference to the logarithm of the sum). #}
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
        largest = max(largest, x[start + i]);
    }
    partial[lane] = largest;
{{ fold("max(a, b)") }}
    let top = partial[0];
    workgroupBarrier();
    var total = 0.0;
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
        total += exp(max(x[start + i] - top, -104.0));
    }
    partial[lane] = total;
{{ fold("a + b") }}
    let sum = partial[0];
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
{% if LOG %}
        y[row * {{ DIM }} + i] = x[start + i] - top - log(sum);
{% else %}
        y[row * {{ DIM }} + i] = exp(max(x[start + i] - top, -104.0)) / sum;
{% endif %}
    }
}
