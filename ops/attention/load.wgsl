{# Loads of four neighbouring elements of a head, and of a mask; shared by the kernels.
   load_x(at, unit): elements 4 * unit .. of the head that starts at ``at`` (in units of x's bound
   element); zeros past DIM. #}
{% for name, vector in [("Q", Q_VEC), ("K", K_VEC), ("V", V_VEC)] %}
{% set x = name | lower %}
fn load_{{ x }}(at: u32, unit: u32) -> vec4<f32> {
{% if vector %}
    return {{ x }}[at + unit];
{% else %}
    var r = vec4<f32>(0.0);
{% for c in range(4) %}
{% set guard = DIM % 4 != 0 and c >= DIM % 4 %}
    {{ "if (unit < %du) { " % (UNITS - 1) if guard }}r.{{ "xyzw"[c] }} = {{ x }}[at + (unit * 4u + {{ c }}u) * {{ p(name ~ "_D") }}];{{ " }" if guard }}
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
    let bits = mask[at];
    let hidden = bits == 0xff800000u;
    let value = bitcast<f32>(select(bits, 0u, hidden));
    return Masked(!hidden, clamp(value, -1e38f, 1e38f) * {{ LOG2_E }});
}
{% endif %}
