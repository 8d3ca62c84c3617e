{# One element of every output a thread, or four neighbours (VEC 4), or two (WRITING pairs); operands
   and outputs are addressed through strides.

   OPERANDS: list of {name, type, codec, vector, offset, terms}: offset and the strides in terms,
   pairs of (coordinate, stride), name parameters ("" for an offset of 0 or a stride of 1).
   OUTPUTS: the same, with expression: WGSL over a0, a1, ... of one element.
   RANK: number of collapsed dimensions; parameters D1 ... are their sizes, the last in units of
   VEC. HELPER: functions that expressions call. RESULT: type of an expression; CODEC: how the
   output's buffer holds it, see halves.wgsl. WRITING: which elements of 16 bits a thread writes, see
   pointwise.py; ODD: their number may be odd. #}
{% from "halves.wgsl" import half_functions, read, word, quad, write_one %}
{% macro address(a, element) -%}
{{ p(a.offset) if a.offset else "0u" }}{% for c, s in a.terms %} + {{ element }}c{{ c }}{{ " * " ~ p(s) if s else "" }}{% endfor %}
{%- endmacro %}
{# The coordinates and operands of one element; ``element`` opens their names. #}
{% macro fetch(element, index) %}
{% if RANK > 1 %}
    var {{ element }}rest = {{ index }};
{% for d in range(RANK - 1, 0, -1) %}
    let {{ element }}c{{ d }} = {{ element }}rest % {{ p("D" ~ d) }};
    {{ element }}rest = {{ element }}rest / {{ p("D" ~ d) }};
{% endfor %}
    let {{ element }}c0 = {{ element }}rest;
{% else %}
    let {{ element }}c0 = {{ index }};
{% endif %}
{% for o in OPERANDS %}
    let {{ element }}v{{ loop.index0 }} = {{ read(o.name, o.codec, o.vector, address(o, element)) }}{{ " != 0u" if o.type == "bool" }};
{% endfor %}
{% endmacro %}
{% macro apply(number, element, component="") -%}
apply{{ number }}({% for o in OPERANDS %}{{ element }}v{{ loop.index0 }}{{ component if o.vector }}{{ ", " if not loop.last }}{% endfor %})
{%- endmacro %}
{{ half_functions(CODECS) }}
{{ HELPER }}
{% for out in OUTPUTS %}
fn apply{{ loop.index0 }}({% for o in OPERANDS %}a{{ loop.index0 }}: {{ o.type }}{{ ", " if not loop.last }}{% endfor %}) -> {{ RESULT }} {
    return {{ out.expression }};
}

{% endfor %}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = (workgroup.x + workgroup.y * groups.x) * {{ WG_X }}u + lane;
{% if WRITING == "pairs" %}
    let first = index * 2u;
    if (first >= {{ COUNT }}) { return; }
    let second = {{ "min(first + 1u, %s - 1u)" % COUNT if ODD else "first + 1u" }};
{{ fetch("l_", "first") }}
{{ fetch("h_", "second") }}
{% for out in OUTPUTS %}
    {
        let at = ({{ address(out, "l_") }}) >> 1u;
        let low = {{ CODEC }}_half({{ apply(loop.index0, "l_") }});
{% if ODD %}
        // The upper half of the last word is not ours.
        var high = out[at] >> 16u;
        if (second != first) { high = {{ CODEC }}_half({{ apply(loop.index0, "h_") }}); }
{% else %}
        let high = {{ CODEC }}_half({{ apply(loop.index0, "h_") }});
{% endif %}
        out[at] = low | (high << 16u);
    }
{% endfor %}
{% else %}
    if (index >= {{ COUNT }}) { return; }
{{ fetch("", "index") }}
{% if WRITING == "woven" %}
    out[({{ address(OUTPUTS[0], "") }}) >> 1u] = {{ word(CODEC, apply(0, ""), apply(1, "")) }};
{% else %}
{% for out in OUTPUTS %}
{% set number = loop.index0 %}
{% if VEC == 4 %}
{% set value %}
vec4<{{ RESULT }}>(
{% for k in range(4) %}
        {{ apply(number, "", "[%d]" % k) }}{{ "," if not loop.last }}
{% endfor %}
    )
{%- endset %}
    out[{{ address(out, "") }}] = {{ quad(CODEC, value) }};
{% elif WRITING == "alone" %}
    {{ write_one("out", CODEC, address(out, ""), apply(number, "")) }}
{% else %}
    let r{{ number }} = {{ apply(number, "") }};
    out[{{ address(out, "") }}] = {{ "u32(r%d)" % number if RESULT == "bool" else "r%d" % number }};
{% endif %}
{% endfor %}
{% endif %}
{% endif %}
}
