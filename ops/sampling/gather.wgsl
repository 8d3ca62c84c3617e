{# A step of the search for the largest distance that top_p keeps: what the logits of each
   workgroup weigh that are nearer than each of 32 bins, which lie 2^SHIFT apart on the grid.
   FIRST: bin 0 has the weight of all. See common.wgsl. #}
{% from "sampling/common.wgsl" import logit_functions, weight_functions, reduce, resolve, resolve_declarations with context %}
var<workgroup> places: array<vec4<u32>, 256>;
var<workgroup> weights: array<vec4<f32>, 256>;
var<workgroup> partial: array<f32, 256>;
{% if FIRST %}
var<workgroup> tops: array<u32, 256>;
{% endif %}
{{ logit_functions() }}
{{ weight_functions() }}
{{ resolve_declarations() }}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    if (is_zero(temperature[0])) { return; }
{{ resolve() }}
{% if FIRST %}
    tops[lane] = 0u;
    for (var g = lane; g < {{ GROUPS }}u; g += 256u) { tops[lane] = max(tops[lane], maxima[g].x); }
    {{ reduce("tops", "max") }}
    let top = tops[0];
    let limit = 0u;
    let total = 0.0;
{% endif %}
    if (workgroup.x == 0u && lane == 0u) {
        after[0] = least;
        after[1] = limit;
        after[2] = bitcast<u32>(total);
        after[3] = top;
    }
    if (top_p[0] >= 1.0) { return; }
    let bin = lane % 32u;
    let edge = vec4<u32>({{ "select(bin << %du, 0xffffffffu, bin == 0u)" % SHIFT if FIRST else "limit + (bin << %du)" % SHIFT }});
    var sum = vec4<f32>();
    for (var tile = 0u; tile < {{ TILES }}u; tile += 1u) {
        let start = (workgroup.x * {{ TILES }}u + tile) * 1024u;
        workgroupBarrier();
{% for c in range(4) %}
        {
            let i = start + {{ c * 256 }}u + lane;
            let key = select(0u, key_at(min(i, {{ V - 1 }}u)), i < {{ V }}u);
            let x = distance(key, top);
            places[lane][{{ c }}] = on_grid(x);
            weights[lane][{{ c }}] = select(0.0, weight(x), key >= least);
        }
{% endfor %}
        workgroupBarrier();
        for (var j = 0u; j < 32u; j += 1u) {
            let at = lane / 32u * 32u + j;
            sum += select(vec4<f32>(), weights[at], places[at] < edge);
        }
    }
    partial[lane] = (sum.x + sum.y) + (sum.z + sum.w);
    workgroupBarrier();
    if (lane < 32u) {
        var all = 0.0;
        for (var part = lane; part < 256u; part += 32u) { all += partial[part]; }
        after[4u + workgroup.x * 32u + lane] = bitcast<u32>(all);
    }
}
