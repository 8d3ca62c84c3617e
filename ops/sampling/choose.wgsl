{# The draw, by one workgroup: the first token in the order of the vocabulary at which the weights
   gathered so far exceed a random part of their sum. First the group of CHUNK logits is found in
   which that is, then the lane's part of it, then the token. At a temperature of 0: the first of
   the largest logits. #}
{% from "sampling/common.wgsl" import logit_functions, weight_functions, reduce with context %}
{% from "sampling/draw.wgsl" import uniform_functions with context %}
var<workgroup> numbers: array<u32, 256>;
var<workgroup> values: array<f32, 256>;
var<workgroup> blocks: array<f32, 16>;
var<workgroup> chosen: array<u32, 2>;
var<workgroup> rests: array<f32, 2>;
{{ logit_functions() }}
{{ weight_functions() }}
{{ uniform_functions() }}
{# Leaves in chosen[n] the first index of values[] at which what was gathered exceeds ``part``
   times the sum (for n = 0) or ``part`` (for n = 1), in rests[n] what is left of that there. What
   is gathered never falls, and rises at what is chosen: the last such where rounding leaves none. #}
{% macro pick(n, part) %}
    workgroupBarrier();
    if (lane < 16u) {
        var sum = 0.0;
        for (var j = 0u; j < 16u; j += 1u) { sum += values[lane * 16u + j]; }
        blocks[lane] = sum;
    }
    workgroupBarrier();
    {
        var all = 0.0;
        var base = 0.0;
        for (var b = 0u; b < 16u; b += 1u) {
            if (b == lane / 16u) { base = all; }
            all += blocks[b];
        }
        var local = 0.0;
        for (var j = lane / 16u * 16u; j < lane; j += 1u) { local += values[j]; }
        let low = base + local;
        let high = base + (local + values[lane]);
        let wanted = {{ part }}{{ " * all" if n == 0 }};
        let here = low <= wanted && wanted < high;
        if (low < high && (here || (wanted >= all && high == all))) {
            chosen[{{ n }}] = lane;
            rests[{{ n }}] = {{ "wanted - low" if n == 0 else "max(wanted - low, 0.0)" }};
        }
    }
    workgroupBarrier();
{% endmacro %}
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lane: u32) {
    if (lane < 2u) {
        // Stays so where nothing weighs anything.
        chosen[lane] = 0u;
        rests[lane] = 0.0;
    }
    numbers[lane] = 0u;
    for (var g = lane; g < {{ GROUPS }}u; g += 256u) { numbers[lane] = max(numbers[lane], maxima[g].x); }
    {{ reduce("numbers", "max") }}
    let largest = numbers[0];
    workgroupBarrier();
    numbers[lane] = 0u;
    for (var g = lane; g < {{ GROUPS }}u; g += 256u) {
        numbers[lane] = max(numbers[lane], select(0u, {{ V }}u - maxima[g].y, maxima[g].x == largest));
    }
    {{ reduce("numbers", "max") }}
    let first = {{ V }}u - numbers[0];
    if (is_zero(temperature[0])) {
        if (lane == 0u) { token[0] = i32(first); }
        return;
    }
    values[lane] = 0.0;
    if (lane < {{ GROUPS }}u) { values[lane] = bitcast<f32>(kept[4u + lane]); }
    {{ pick(0, "uniform_number()") }}
    let start = (chosen[0] * 256u + lane) * {{ TILES * 4 }}u;
    let least = kept[0];
    let end = kept[1];
    let top = kept[3];
    var mine = 0.0;
    for (var j = 0u; j < {{ TILES * 4 }}u; j += 1u) {
        let key = select(0u, key_at(min(start + j, {{ V - 1 }}u)), start + j < {{ V }}u);
        let x = distance(key, top);
        mine += select(0.0, weight(x), key >= least && on_grid(x) < end);
    }
    values[lane] = mine;
    {{ pick(1, "rests[0]") }}
    if (lane != chosen[1]) { return; }
    var gathered = 0.0;
    var found = first;
    for (var j = 0u; j < {{ TILES * 4 }}u; j += 1u) {
        let key = select(0u, key_at(min(start + j, {{ V - 1 }}u)), start + j < {{ V }}u);
        let x = distance(key, top);
        let value = select(0.0, weight(x), key >= least && on_grid(x) < end);
        if (value > 0.0 && gathered <= rests[1]) {
            found = start + j;
            gathered += value;
        }
    }
    token[0] = i32(found);
}
