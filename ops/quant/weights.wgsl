{# What reads a packed weight; layout.py says how it lies. Import "with context".

   Q: bits, group, groups (a row), words (a row), zero, zeros ("", "bytes" or "offsets"), half (the
   scales' dtype is f16), subnormal (some of these are), at (the first row that is bound, a parameter's name or "").
   Variables: weight, scales, zeros. Rows are counted from the first that is bound. #}
{% set ROW = "n + " ~ p(Q.at) if Q.at else "n" %}
{% set POWER = 16 if Q.bits == 4 else 256 %}
{% macro quant_functions() %}
{% if Q.half and not Q.subnormal %}
fn half_of(word: u32, index: u32) -> f32 {
    return unpack2x16float(word >> ((index & 1u) * 16u)).x;
}
{% elif Q.half %}
// An f16 by its bits: what is subnormal stays exact where unpack2x16float would flush it.
fn half_of(word: u32, index: u32) -> f32 {
    let half = (word >> ((index & 1u) * 16u)) & 0xffffu;
    let size = half & 0x7fffu;
    let value = select(
        bitcast<f32>((size << 13u) + 0x38000000u), f32(size) * 5.9604644775390625e-8, size < 0x400u
    );
    return select(value, -value, half >= 0x8000u);
}
{% endif %}
// The scale of group g of row n.
fn scale_of(n: u32, g: u32) -> f32 {
    let at = ({{ ROW }}) * {{ GROUPS }} + g;
    return {{ "half_of(scales[at >> 1u], at)" if Q.half else "scales[at]" }};
}
{% if Q.zeros == "bytes" %}
fn zero_of(n: u32, g: u32) -> u32 {
    return (zeros[({{ ROW }}) * (({{ GROUPS }} + 3u) / 4u) + (g >> 2u)] >> ((g & 3u) * 8u)) & 255u;
}
{% else %}
fn zero_of(n: u32, g: u32) -> u32 { return {{ Q.zero if not Q.zeros else 0 }}u; }
{% endif %}
{% if Q.zeros == "offsets" %}
fn offset_of(n: u32, g: u32) -> f32 {
    let at = ({{ ROW }}) * {{ GROUPS }} + g;
    return {{ "half_of(zeros[at >> 1u], at)" if Q.half else "zeros[at]" }};
}
{% endif %}
// A code c as the float 1 + c / {{ POWER }}: its bits are those of the mantissa, nothing is converted.
fn center_at(zero: u32) -> f32 { return bitcast<f32>(0x3f800000u | (zero << {{ 23 - Q.bits }}u)); }
fn center_of(n: u32, g: u32) -> f32 { return center_at(zero_of(n, g)); }
// Four neighbours in the lower {{ Q.bits }} bits of each byte, as such floats.
fn four(word: u32) -> vec4<f32> {
    let shifted = vec4<u32>({{ "word << 19u, word << 11u, word << 3u, word >> 5u" if Q.bits == 4 else "word << 15u, word << 7u, word >> 1u, word >> 9u" }});
    return bitcast<vec4<f32>>((shifted & vec4<u32>({{ "0x00780000u" if Q.bits == 4 else "0x007f8000u" }})) | vec4<u32>(0x3f800000u));
}
{% endmacro %}

{# Four neighbours from k on (a multiple of four) of row n: what tiles fetch, and what becomes of it. #}
{% macro tile_function() %}
{% set MASK = "0x000f000fu" if Q.bits == 4 else "0x00ff00ffu" %}
alias weight_quad_packed = vec{{ 3 if Q.zeros else 2 }}<u32>;
// Words as they lie: of the codes, the scale, the zero or offset. Not even shifted: a lane would wait.
fn weight_quad_fetch(n: u32, k: u32) -> weight_quad_packed {
    let g = {{ "0u" if Q.groups == 1 else "k / " ~ p("GROUP") }};
    let at = ({{ ROW }}) * {{ GROUPS }} + g;
    let scale = {{ "scales[at >> 1u]" if Q.half else "bitcast<u32>(scales[at])" }};
    return weight_quad_packed(weight[n * {{ WORDS }} + k / {{ 32 // Q.bits }}u], scale
{%- if Q.zeros == "bytes" %}, zeros[({{ ROW }}) * (({{ GROUPS }} + 3u) / 4u) + (g >> 2u)]
{%- elif Q.zeros == "offsets" %}, {{ "zeros[at >> 1u]" if Q.half else "bitcast<u32>(zeros[at])" }}
{%- endif -%} );
}
fn weight_quad(fetched: weight_quad_packed, n: u32, k: u32) -> vec4<f32> {
    let g = {{ "0u" if Q.groups == 1 else "k / " ~ p("GROUP") }};
{% if Q.half %}
    let at = ({{ ROW }}) * {{ GROUPS }} + g;
{% endif %}
    // A code c as the f16 1024 + c, two to a word: its bits are the lowest of the mantissa.
    let word = fetched.x{{ " >> (k & 4u)" if Q.bits == 4 }};
    let even = unpack2x16float((word & {{ MASK }}) | 0x64006400u);
    let odd = unpack2x16float(((word >> 8u) & {{ MASK }}) | 0x64006400u);
    let codes = vec4<f32>(even.x, odd.x, even.y, odd.y);
    let scale = {{ "half_of(fetched.y, at)" if Q.half else "bitcast<f32>(fetched.y)" }};
{% if Q.zeros == "offsets" %}
    return (codes - vec4<f32>(1024.0)) * scale + vec4<f32>({{ "half_of(fetched.z, at)" if Q.half else "bitcast<f32>(fetched.z)" }});
{% else %}
    let center = {{ "1024.0 + f32((fetched.z >> ((g & 3u) * 8u)) & 255u)" if Q.zeros else 1024.0 + Q.zero }};
    return (codes - vec4<f32>(center)) * scale;
{% endif %}
}
{% endmacro %}
