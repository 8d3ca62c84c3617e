{# What the sampling kernels share. Import with context.

   A logit is compared by its key, a u32 that rises with it: NaN has the lowest, 0, and both zeros
   have one. Its distance is how far it is below the largest, in units of the temperature. #}
{% from "halves.wgsl" import half_functions, read %}

{# The functions on logits. LOGITS: codec of halves.wgsl; f32 is bound as its bits. #}
{% macro logit_functions() %}
{{ half_functions([LOGITS]) }}
// By its bits: of numbers below 2^-126 a comparison may say that they are 0.
fn is_zero(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0u;
}
fn key_of(bits: u32) -> u32 {
    let size = bits & 0x7fffffffu;
    let key = select(~bits, bits | 0x80000000u, bits < 0x80000000u || size == 0u);
    return select(key, 0u, size > 0x7f800000u);
}
fn key_at(i: u32) -> u32 {
{% if LOGITS %}
    return key_of(bitcast<u32>({{ read("logits", LOGITS, False, LOGITS_AT ~ " + i") }}));
{% else %}
    return key_of(logits[{{ LOGITS_AT }} + i]);
{% endif %}
}
{% endmacro %}

{# Distances and weights; the temperature is not 0. #}
{% macro weight_functions() %}
// Beyond this a weight is 0: below the smallest f32.
const FAR = 87.0;
fn distance(key: u32, top: u32) -> f32 {
    // Half of each, so that the difference of any two is finite; of infinity, the largest number.
    let low = 0.5 * clamp(bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u)), -3e38, 3e38);
    let high = 0.5 * clamp(bitcast<f32>(select(~top, top & 0x7fffffffu, top >= 0x80000000u)), -3e38, 3e38);
    let unit = 0.5 * clamp(temperature[0], 1e-30, 1e30);
    // -inf and NaN: never chosen.
    let never = key <= 0x007fffffu || high - low > FAR * unit;
    return select((high - low) / unit, FAR, never);
}
fn weight(x: f32) -> f32 {
    return select(exp(-x), 0.0, x >= FAR);
}
// The distance on a grid of 2^-20, on which top_p's limit is sought.
fn on_grid(x: f32) -> u32 {
    return u32(min(x, 40.0) * 1048576.0);
}
{% endmacro %}

{# Adds up (or with op "max": finds the largest of) the workgroup's values in the array ``name``;
   the result is in element 0. #}
{% macro reduce(name, op="+") %}
    workgroupBarrier();
{% set ns = namespace(half=WG_X // 2) %}
{% for _ in range(WG_X.bit_length() - 1) %}
    if (lane < {{ ns.half }}u) {
{% if op == "max" %}
        {{ name }}[lane] = max({{ name }}[lane], {{ name }}[lane + {{ ns.half }}u]);
{% else %}
        {{ name }}[lane] += {{ name }}[lane + {{ ns.half }}u];
{% endif %}
    }
    workgroupBarrier();
{% set ns.half = ns.half // 2 %}
{% endfor %}
{% endmacro %}

{# A search is a row of dispatches. Each leaves, in words of a buffer, what is known, and what the
   next one needs to know more: 0: the least key that is kept; 1: the limit of distance so far, on
   the grid; 2: the sum of all weights (f32); 3: the largest key; from 4 on, for each of GROUPS
   workgroups, what each of 32 bins has of its logits: BEFORE "count": how many have a key of at
   least the bin's; BEFORE "weight": the sum of weights at a distance below the bin's (in bin 0 of
   the first such dispatch, FRESH, of all). The next one adds the groups up and takes the last bin
   that top_k, or top_p, asks for. #}
{% macro resolve_declarations() %}
{% if BEFORE %}
var<workgroup> found: array<{{ "u32" if BEFORE == "count" else "f32" }}, 256>;
{% endif %}
{% endmacro %}
{% macro resolve() %}
    var least = {{ "before[0]" if BEFORE else "0u" }};
{% if BEFORE %}
    {
        let bin = lane % 32u;
        var sum = {{ "0u" if BEFORE == "count" else "0.0" }};
        for (var g = lane / 32u; g < {{ GROUPS }}u; g += 8u) {
            sum += {{ ("%s" if BEFORE == "count" else "bitcast<f32>(%s)") % "before[4u + g * 32u + bin]" }};
        }
        found[lane] = sum;
    }
    workgroupBarrier();
    if (lane < 32u) {
        found[lane] = ((found[lane] + found[lane + 32u]) + (found[lane + 64u] + found[lane + 96u]))
            + ((found[lane + 128u] + found[lane + 160u]) + (found[lane + 192u] + found[lane + 224u]));
    }
    workgroupBarrier();
    var digit = 0u;
{% if BEFORE == "count" %}
    // The largest bin that still has top_k: what bins have falls.
    for (var b = 1u; b < 32u; b += 1u) { digit += select(0u, 1u, found[b] >= u32({{ TOP_K }})); }
    least += digit << {{ BEFORE_SHIFT }}u;
{% else %}
    let top = before[3];
    let total = {{ "found[0]" if FRESH else "bitcast<f32>(before[2])" }};
    let share = top_p[0] * total;
    for (var b = 1u; b < 32u; b += 1u) { digit += select(0u, 1u, found[b] < share); }
    let limit = before[1] + (digit << {{ BEFORE_SHIFT }}u);
{% endif %}
{% endif %}
{% endmacro %}
