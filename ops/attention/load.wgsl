{# Loads of four neighbouring elements of a head, and of a mask; shared by the kernels.
   load_x(at, unit): elements 4 * unit .. of the head that starts at ``at`` (in units of x's bound
   element); zeros past DIM. #}
{% from "halves.wgsl" import half_functions, read %}
{{ half_functions([Q_CODEC, K_CODEC, V_CODEC, OUT_CODEC, MASK_CODEC if MASK else ""] + ([FRESH.cos.codec, FRESH.sin.codec] if FRESH else [])) }}
{% for name, vector, codec in [("Q", Q_VEC, Q_CODEC), ("K", K_VEC, K_CODEC), ("V", V_VEC, V_CODEC)] %}
{% set x = name | lower %}
fn load_{{ x }}(at: u32, unit: u32) -> vec4<f32> {
{% if vector %}
    return {{ read(x, codec, true, "at + unit") }};
{% else %}
    var r = vec4<f32>(0.0);
{% for c in range(4) %}
{% set guard = DIM % 4 != 0 and c >= DIM % 4 %}
{% set index = "at + (unit * 4u + %du) * %s" % (c, p(name ~ "_D")) %}
    {{ "if (unit < %du) { " % (UNITS - 1) if guard }}r.{{ "xyzw"[c] }} = {{ read(x, codec, false, index) }};{{ " }" if guard }}
{% endfor %}
    return r;
{% endif %}
}
{% endfor %}
{% if MASK %}

struct Masked { seen: bool, bias: f32 }

// -inf hides a key and is told by its bits; what is finite is kept where differences of scores
// stay finite too.
fn load_mask(at: u32) -> Masked {
{% if MASK_CODEC %}
    let word = mask[at >> 1u] >> ((at & 1u) * 16u);
    let hidden = (word & 0xffffu) == {{ {"f16": "0xfc00u", "bf16": "0xff80u"}[MASK_CODEC] }};
    let value = {{ MASK_CODEC }}_at(select(word, 0u, hidden), 0u);
{% else %}
    let bits = mask[at];
    let hidden = bits == 0xff800000u;
    let value = bitcast<f32>(select(bits, 0u, hidden));
{% endif %}
    return Masked(!hidden, clamp(value, -1e38f, 1e38f) * {{ LOG2_E }});
}
{% endif %}
