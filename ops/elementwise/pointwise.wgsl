{# One output element (or four neighbours, VEC 4) a thread; operands read through strides.

   OPERANDS: list of {name, type, vector, offset, terms}: offset and the strides in terms, pairs of
   (coordinate, stride), name parameters ("" for an offset of 0 or a stride of 1).
   RANK: number of collapsed output dimensions; parameters D1 ... are their sizes, the last in
   units of VEC. EXPRESSION: WGSL over a0, a1, ... of one element. #}
{% macro address(a) %}
{{ p(a.offset) if a.offset else "0u" }}{% for c, s in a.terms %} + c{{ c }}{{ " * " ~ p(s) if s else "" }}{% endfor %}
{% endmacro %}
fn apply({% for o in OPERANDS %}a{{ loop.index0 }}: {{ o.type }}{{ ", " if not loop.last }}{% endfor %}) -> {{ RESULT }} {
    return {{ EXPRESSION }};
}

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
    let i{{ loop.index0 }} = {{ address(o) | trim }};
    let v{{ loop.index0 }} = {{ o.name }}[i{{ loop.index0 }}]{{ " != 0u" if o.type == "bool" }};
{% endfor %}
{% if VEC == 4 %}
    out[index] = {{ OUT_TYPE }}(
{% for k in range(4) %}
        apply({% for o in OPERANDS %}v{{ loop.index0 }}{{ "[" ~ k ~ "]" if o.vector }}{{ ", " if not loop.last }}{% endfor %}){{ "," if not loop.last }}
{% endfor %}
    );
{% else %}
    let result = apply({% for o in OPERANDS %}v{{ loop.index0 }}{{ ", " if not loop.last }}{% endfor %});
    out[{{ address(OUT) | trim }}] = {{ "u32(result)" if RESULT == "bool" else "result" }};
{% endif %}
}
