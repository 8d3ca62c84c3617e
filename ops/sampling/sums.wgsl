{# What the kept logits of each workgroup weigh, from word 4 on. Word 0: the least key kept, 1: the
   limit of distance on the grid (all ones: none), 3: the largest key. #}
{% from "sampling/common.wgsl" import logit_functions, weight_functions, reduce, resolve, resolve_declarations with context %}
var<workgroup> partial: array<f32, 256>;
{{ logit_functions() }}
{{ weight_functions() }}
{{ resolve_declarations() }}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    if (is_zero(temperature[0])) { return; }
{{ resolve() }}
    // All of the last place on the grid is kept; the last of all has everything beyond.
    let unlimited = top_p[0] >= 1.0 || limit >= {{ 32 * 1048576 - 1 }}u;
    let end = select(limit + 1u, 0xffffffffu, unlimited);
    var sum = 0.0;
    for (var j = lane; j < {{ TILES * 1024 }}u; j += 256u) {
        let i = workgroup.x * {{ TILES * 1024 }}u + j;
        let key = select(0u, key_at(min(i, {{ V - 1 }}u)), i < {{ V }}u);
        let x = distance(key, top);
        sum += select(0.0, weight(x), key >= least && on_grid(x) < end);
    }
    partial[lane] = sum;
    {{ reduce("partial") }}
    if (lane == 0u) {
        after[4u + workgroup.x] = bitcast<u32>(partial[0]);
        if (workgroup.x == 0u) {
            after[0] = least;
            after[1] = end;
            after[3] = top;
        }
    }
}
