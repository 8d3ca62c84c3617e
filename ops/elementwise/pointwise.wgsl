{# One element of every output (or four neighbours, VEC 4) a thread; operands and outputs are
   addressed through strides.

   OPERANDS: list of {name, type, vector, offset, terms}: offset and the strides in terms, pairs of
   (coordinate, stride), name parameters ("" for an offset of 0 or a stride of 1).
   OUTPUTS: the same, with expression: WGSL over a0, a1, ... of one element.
   RANK: number of collapsed dimensions; parameters D1 ... are their sizes, the last in units of
   VEC. HELPER: functions that expressions call. RESULT: type of an expression; STORED: element type of the output's buffer. #}
{% macro address(a) %}
{{ p(a.offset) if a.offset else "0u" }}{% for c, s in a.terms %} + c{{ c }}{{ " * " ~ p(s) if s else "" }}{% endfor %}
{% endmacro %}
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
    if (index >= {{ COUNT }}) { return; }
{% if RANK > 1 %}
    var rest = index;
{% for d in range(RANK - 1, 0, -1) %}
    let c{{ d }} = rest % {{ p("D" ~ d) }};
    rest = rest / {{ p("D" ~ d) }};
{% endfor %}
    let c0 = rest;
{% else %}
    let c0 = index;
{% endif %}
{% for o in OPERANDS %}
    let v{{ loop.index0 }} = {{ o.name }}[{{ address(o) | trim }}]{{ " != 0u" if o.type == "bool" }};
{% endfor %}
{% for out in OUTPUTS %}
{% set apply = "apply" ~ loop.index0 %}
{% if VEC == 4 %}
    out[{{ address(out) | trim }}] = vec4<{{ STORED }}>(
{% for k in range(4) %}
        {{ apply }}({% for o in OPERANDS %}v{{ loop.index0 }}{{ "[" ~ k ~ "]" if o.vector }}{{ ", " if not loop.last }}{% endfor %}){{ "," if not loop.last }}
{% endfor %}
    );
{% else %}
    let r{{ loop.index0 }} = {{ apply }}({% for o in OPERANDS %}v{{ loop.index0 }}{{ ", " if not loop.last }}{% endfor %});
    out[{{ address(out) | trim }}] = {{ "u32(r%d)" % loop.index0 if RESULT == "bool" else "r%d" % loop.index0 }};
{% endif %}
{% endfor %}
}
