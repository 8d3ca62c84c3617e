{# A step of the search for the least key that top_k keeps: how many logits of each workgroup have
   a key of at least that of each of 32 bins, which lie 2^SHIFT apart. See common.wgsl. #}
{% from "sampling/common.wgsl" import logit_functions, resolve, resolve_declarations with context %}
var<workgroup> keys: array<vec4<u32>, 256>;
var<workgroup> partial: array<u32, 256>;
{{ logit_functions() }}
{{ resolve_declarations() }}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    if (is_zero(temperature[0])) { return; }
{{ resolve() }}
    let limit = vec4<u32>(least + ((lane % 32u) << {{ SHIFT }}u));
    var sum = vec4<u32>();
    for (var tile = 0u; tile < {{ TILES }}u; tile += 1u) {
        let start = (workgroup.x * {{ TILES }}u + tile) * 1024u;
        workgroupBarrier();
{% for c in range(4) %}
        {
            let i = start + {{ c * 256 }}u + lane;
            keys[lane][{{ c }}] = select(0u, key_at(min(i, {{ V - 1 }}u)), i < {{ V }}u);
        }
{% endfor %}
        workgroupBarrier();
        for (var j = 0u; j < 32u; j += 1u) {
            sum += select(vec4<u32>(), vec4<u32>(1u), keys[lane / 32u * 32u + j] >= limit);
        }
    }
    partial[lane] = sum.x + sum.y + sum.z + sum.w;
    workgroupBarrier();
    if (lane < 32u) {
        var all = 0u;
        for (var part = lane; part < 256u; part += 32u) { all += partial[part]; }
        after[4u + workgroup.x * 32u + lane] = all;
    }
    if (workgroup.x == 0u && lane == 0u) { after[0] = least; }
}
