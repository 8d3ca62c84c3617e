{# The largest logit of V, by one workgroup: at a temperature of 0 the first of equal ones, else
   one of them that the draw picks. VEC: how many are read at once. #}
{% from "sampling/common.wgsl" import logit_functions, reduce with context %}
{% from "sampling/draw.wgsl" import uniform_functions with context %}
{% set UNROLL = 4 %}
{% set BLOCK = WG_X * UNROLL %}
var<workgroup> keys: array<u32, {{ WG_X }}>;
var<workgroup> numbers: array<u32, {{ WG_X }}>;
{{ logit_functions() }}
{{ uniform_functions() }}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(local_invocation_index) lane: u32) {
    var best = 0u;
    var first = 0xffffffffu;
    for (var at = lane; at < {{ V // VEC }}u; at += {{ BLOCK }}u) {
{% for u in range(UNROLL) %}
        // Past the end the last one is read again, which changes nothing.
        let i{{ u }} = min(at + {{ u * WG_X }}u, {{ V // VEC - 1 }}u);
{% if VEC == 4 %}
        let read{{ u }} = logits[i{{ u }}];
{% else %}
        let k{{ u }} = key_at(i{{ u }});
{% endif %}
{% endfor %}
{% for u in range(UNROLL) %}
{% if VEC == 4 %}
        let k{{ u }} = vec4<u32>(key_of(read{{ u }}.x), key_of(read{{ u }}.y), key_of(read{{ u }}.z), key_of(read{{ u }}.w));
        let most{{ u }} = max(max(k{{ u }}.x, k{{ u }}.y), max(k{{ u }}.z, k{{ u }}.w));
        if (most{{ u }} > best || first == 0xffffffffu) {
            best = most{{ u }};
            let behind = select(select(select(3u, 2u, k{{ u }}.z == best), 1u, k{{ u }}.y == best), 0u, k{{ u }}.x == best);
            first = i{{ u }} * 4u + behind;
        }
{% else %}
        if (k{{ u }} > best || first == 0xffffffffu) {
            best = k{{ u }};
            first = i{{ u }};
        }
{% endif %}
{% endfor %}
    }
    keys[lane] = best;
    // The first of equal ones is the largest of what is left from it to the end.
    numbers[lane] = {{ V }}u - min(first, {{ V }}u);
    {{ reduce("keys", "max") }}
    let top = keys[0];
    if (best != top) { numbers[lane] = 0u; }
    {{ reduce("numbers", "max") }}
    if (is_zero(temperature[0])) {
        if (lane == 0u) { token[0] = i32({{ V }}u - numbers[0]); }
        return;
    }
    // How many are equal, each lane in a part of its own, in order.
    workgroupBarrier();
    var mine = 0u;
    for (var i = lane * {{ PART }}u; i < min((lane + 1u) * {{ PART }}u, {{ V }}u); i += 1u) {
        mine += select(0u, 1u, key_at(i) == top);
    }
    numbers[lane] = mine;
    workgroupBarrier();
    var ahead = 0u;
    var all = 0u;
    for (var l = 0u; l < {{ WG_X }}u; l += 1u) {
        ahead += select(0u, numbers[l], l < lane);
        all += numbers[l];
    }
    let chosen = min(u32(uniform_number() * f32(all)), all - 1u);
    if (chosen < ahead || chosen >= ahead + mine) { return; }
    for (var i = lane * {{ PART }}u; i < min((lane + 1u) * {{ PART }}u, {{ V }}u); i += 1u) {
        if (key_at(i) != top) { continue; }
        if (ahead == chosen) { token[0] = i32(i); }
        ahead += 1u;
    }
}
