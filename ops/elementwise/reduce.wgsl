{# One workgroup reduces one row: DIM elements, STRIDE apart, from base + the row's offset.
   Lanes stride through the row, then halve in workgroup memory. KIND: sum, mean, amax, amin.
   X, Y: codecs of halves.wgsl. #}
{% from "halves.wgsl" import half_functions, read, write_one %}
{% macro join(a, b) %}
{%- if KIND in ("amax", "amin") %}{{ KIND[1:] }}({{ a }}, {{ b }}){% else %}{{ a }} + {{ b }}{% endif %}
{%- endmacro %}
{% set LARGEST = "3.4028234663852886e38" %}
{{ half_functions([X, Y]) }}
var<workgroup> partial: array<f32, {{ WG_X }}>;

@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = workgroup.x + workgroup.y * groups.x;
    if (row >= {{ ROWS }}) { return; }
    let start = {{ START }} + row * {{ ROW_STRIDE }};
    var total = {{ {"amax": "-" ~ LARGEST, "amin": LARGEST}.get(KIND, "0.0") }};
    for (var i = lane; i < {{ DIM }}; i += {{ WG_X }}u) {
        let value = {{ read("x", X, false, "start + i") }};
        total = {{ join("total", "value") }};
    }
    partial[lane] = total;
    workgroupBarrier();
{% set ns = namespace(half=WG_X // 2) %}
{% for _ in range(WG_X.bit_length() - 1) %}
    if (lane < {{ ns.half }}u) {
        partial[lane] = {{ join("partial[lane]", "partial[lane + %du]" % ns.half) }};
    }
    workgroupBarrier();
{% set ns.half = ns.half // 2 %}
{% endfor %}
    if (lane == 0u) {
        let result = partial[0]{{ " / f32(%s)" % DIM if KIND == "mean" }};
        {{ write_one("y", Y, "row", "result") }}
    }
}
