{# Random numbers of the draw: a function of the seed and the position alone. #}
{% macro uniform_functions() %}
fn pcg(value: u32) -> u32 {
    let state = value * 747796405u + 2891336453u;
    let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
    return (word >> 22u) ^ word;
}
// A multiple of 2^-24 in [0, 1).
fn uniform_number() -> f32 {
    return f32(pcg(pcg(u32({{ SEED }})) + u32({{ POSITION }})) >> 8u) / 16777216.0;
}
{% endmacro %}
