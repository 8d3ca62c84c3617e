{# f16 and bf16 in storage: two to a word, element 2k in the lower half of word k. Import with

     {% from "halves.wgsl" import half_functions, read, word, quad, write_one %}

   A codec is the name of a dtype of 16 bits: "f16" or "bf16", whose elements are f32 in a shader, or
   "bits", whose elements are the 16 bits themselves, as u32. Anything else is 32 bits wide and bound
   as what it is. half_functions(codecs) defines what the macros call, for these codecs. #}

{# The element of a buffer at ``index``; with ``vector`` the four from 4 * index, which are bound as
   vec2<u32> for a codec and as a vec4 otherwise. #}
{% macro read(name, codec, vector, index) -%}
{%- if codec in ("f16", "bf16", "bits") -%}
{%- if vector -%}
{{ codec }}_quad({{ name }}[{{ index }}])
{%- else -%}
{{ codec }}_at({{ name }}[({{ index }}) >> 1u], {{ index }})
{%- endif -%}
{%- else -%}
{{ name }}[{{ index }}]
{%- endif -%}
{%- endmacro %}

{# Two elements as a word. #}
{% macro word(codec, low, high) -%}
({{ codec }}_half({{ low }}) | ({{ codec }}_half({{ high }}) << 16u))
{%- endmacro %}

{# Four elements (a vec4) as what a buffer takes at once: vec2<u32> for a codec. #}
{% macro quad(codec, value) -%}
{{ "%s_words(%s)" % (codec, value) if codec in ("f16", "bf16", "bits") else value }}
{%- endmacro %}

{# A statement: one element into a buffer, which is bound as atomic<u32> for a codec: another thread
   may own the other half of the word. Each touches its own half only, so nothing depends on their
   order. #}
{% macro write_one(name, codec, index, value) -%}
{% if not codec -%}
{{ name }}[{{ index }}] = {{ value }};
{%- else -%}
{
    let half_at = {{ index }};
    let half_shift = (half_at & 1u) * 16u;
    let half_bits = {{ codec }}_half({{ value }}) << half_shift;
    atomicAnd(&{{ name }}[half_at >> 1u], ~(0xffffu << half_shift));
    atomicOr(&{{ name }}[half_at >> 1u], half_bits);
}
{%- endif %}
{%- endmacro %}

{% macro half_functions(codecs) %}
{% if "f16" in codecs %}
fn f16_at(word: u32, index: u32) -> f32 {
    return unpack2x16float(word >> ((index & 1u) * 16u)).x;
}
fn f16_quad(words: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}
// Rounds to nearest even on every device, which pack2x16float leaves open. What is finite ends at
// 65504; infinity and NaN are told by their bits and stay what they are.
fn f16_half(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    let normal = min((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u, 0x7bffu);
    // Below 2^-14 f16 has steps of 2^-24, as f32 has from 0.5 on.
    let small = bitcast<u32>(bitcast<f32>(size) + 0.5) - 0x3f000000u;
    let special = select(0x7c00u, 0x7e00u, size > 0x7f800000u);
    let finite = select(normal, small, size < 0x38800000u);
    return ((bits >> 16u) & 0x8000u) | select(finite, special, size >= 0x7f800000u);
}
fn f16_words(x: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(f16_half(x.x) | (f16_half(x.y) << 16u), f16_half(x.z) | (f16_half(x.w) << 16u));
}
{% endif %}
{% if "bf16" in codecs %}
fn bf16_at(word: u32, index: u32) -> f32 {
    return bitcast<f32>((word >> ((index & 1u) * 16u)) << 16u);
}
fn bf16_quad(words: vec2<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(
        vec4<u32>(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u)
    );
}
// Rounds to nearest even. What is finite stays finite; infinity and NaN stay what they are.
fn bf16_half(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    let finite = min((size + 0x7fffu + ((size >> 16u) & 1u)) >> 16u, 0x7f7fu);
    let special = select(0x7f80u, 0x7fc0u, size > 0x7f800000u);
    return ((bits >> 16u) & 0x8000u) | select(finite, special, size >= 0x7f800000u);
}
fn bf16_words(x: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(
        bf16_half(x.x) | (bf16_half(x.y) << 16u), bf16_half(x.z) | (bf16_half(x.w) << 16u)
    );
}
{% endif %}
{% if "bits" in codecs %}
fn bits_at(word: u32, index: u32) -> u32 {
    return (word >> ((index & 1u) * 16u)) & 0xffffu;
}
fn bits_quad(words: vec2<u32>) -> vec4<u32> {
    return vec4<u32>(words.x & 0xffffu, words.x >> 16u, words.y & 0xffffu, words.y >> 16u);
}
fn bits_half(x: u32) -> u32 {
    return x;
}
fn bits_words(x: vec4<u32>) -> vec2<u32> {
    return x.xz | (x.yw << vec2<u32>(16u));
}
{% endif %}
{% endmacro %}
