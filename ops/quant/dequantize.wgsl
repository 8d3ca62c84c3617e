{# out[i] = (x[i] - zero) * scale, four elements a thread. BLOCKS: which scale and zero point an element
   has. SCALE, ZERO: the dtype of a tensor, or a literal. #}
{% from "quant/bytes.wgsl" import number, block_of with context %}
fn one(i: u32) -> f32 {
    let s = {{ block_of("i") }};
    return ({{ number("x", X, "i") }} - {{ number("zeros", ZERO, "s") }}) * {{ number("scales", SCALE, "s") }};
}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = ((workgroup.x + workgroup.y * groups.x) * {{ WG_X }}u + lane) * 4u;
{% for c in range(4) %}
    if (start + {{ c }}u < {{ COUNT }}) { out[start + {{ c }}u] = one(start + {{ c }}u); }
{% endfor %}
}
