{# Of each workgroup's CHUNK logits: the largest key, and where it is first. #}
{% from "sampling/common.wgsl" import logit_functions, reduce with context %}
var<workgroup> keys: array<u32, {{ WG_X }}>;
var<workgroup> numbers: array<u32, {{ WG_X }}>;
{{ logit_functions() }}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = workgroup.x * {{ CHUNK }}u;
    let end = min(start + {{ CHUNK }}u, {{ V }}u);
    var best = 0u;
    var first = end - 1u;
    for (var i = start + lane; i < end; i += {{ WG_X }}u) {
        let key = key_at(i);
        first = select(first, i, key > best || i == start + lane);
        best = max(best, key);
    }
    keys[lane] = best;
    numbers[lane] = {{ V }}u - first;
    {{ reduce("keys", "max") }}
    if (best != keys[0]) { numbers[lane] = 0u; }
    {{ reduce("numbers", "max") }}
    if (lane == 0u) { maxima[workgroup.x] = vec2<u32>(keys[0], {{ V }}u - numbers[0]); }
}
