{# The largest logit of V, of what maxima.wgsl has found of GROUPS parts: at a temperature of 0 the
   first of equal ones, else one of them that the draw picks; where there are several, which is rare,
   all logits are read again. #}
{% from "sampling/common.wgsl" import logit_functions, reduce with context %}
{% from "sampling/draw.wgsl" import uniform_functions with context %}
var<workgroup> keys: array<u32, {{ WG_X }}>;
var<workgroup> numbers: array<u32, {{ WG_X }}>;
var<workgroup> counts: array<u32, {{ WG_X }}>;
{{ logit_functions() }}
{{ uniform_functions() }}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(local_invocation_index) lane: u32) {
    var best = 0u;
    var first = {{ V }}u;
    var several = 0u;
    if (lane < {{ GROUPS }}u) {
        best = maxima[lane].x;
        first = maxima[lane].y & 0x7fffffffu;
        several = 1u + (maxima[lane].y >> 31u);
    }
    keys[lane] = best;
    // The first of equal ones is the largest of what is left from it to the end.
    numbers[lane] = {{ V }}u - first;
    {{ reduce("keys", "max") }}
    let top = keys[0];
    if (best != top) { numbers[lane] = 0u; }
    {{ reduce("numbers", "max") }}
    counts[lane] = select(0u, several, best == top);
    {{ reduce("counts") }}
    let found = workgroupUniformLoad(&counts[0]);
    // Of nothing but NaN and -inf, too, the first of the largest is taken, as where it is drawn.
    let nothing = workgroupUniformLoad(&keys[0]) <= 0x007fffffu;
    if (is_zero(temperature[0]) || found == 1u || nothing) {
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
