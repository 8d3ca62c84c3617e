{# Of each workgroup's CHUNK logits: the largest key, and where it is first; with SEVERAL the top bit
   of the place says that it is not the only one. #}
{% from "sampling/common.wgsl" import logit_functions, reduce with context %}
var<workgroup> keys: array<u32, {{ WG_X }}>;
var<workgroup> numbers: array<u32, {{ WG_X }}>;
{% if SEVERAL %}
var<workgroup> equals: array<u32, {{ WG_X }}>;
{% endif %}
{{ logit_functions() }}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let start = workgroup.x * {{ CHUNK }}u;
    let end = min(start + {{ CHUNK }}u, {{ V }}u);
    var best = 0u;
    var first = end - 1u;
{% if SEVERAL %}
    var equal = 0u;
{% endif %}
    for (var i = start + lane; i < end; i += {{ WG_X }}u) {
        let key = key_at(i);
        let better = key > best || i == start + lane;
        first = select(first, i, better);
{% if SEVERAL %}
        equal = select(equal + select(0u, 1u, key == best), 1u, better);
{% endif %}
        best = max(best, key);
    }
    keys[lane] = best;
    numbers[lane] = {{ V }}u - first;
    {{ reduce("keys", "max") }}
    if (best != keys[0]) { numbers[lane] = 0u; }
    {{ reduce("numbers", "max") }}
{% if SEVERAL %}
    equals[lane] = select(0u, equal, best == keys[0]);
    {{ reduce("equals") }}
{% endif %}
    if (lane == 0u) {
        maxima[workgroup.x] = vec2<u32>(keys[0], {{ V }}u - numbers[0]{{ " + select(0u, 0x80000000u, equals[0] > 1u)" if SEVERAL }});
    }
}
