{# Integers of 8 bits, read through strides, as another dtype: four elements of the result a thread.

   DIMS: of the result, S<d>: strides of x, D<d>: sizes but the outermost; TO: "I8"/"U8" (the bytes
   as they are), "F32" or "I32". #}
{% from "quant/bytes.wgsl" import number with context %}
fn address(index: u32) -> u32 {
    var rest = index;
    var at = {{ X_AT }};
{% for d in range(DIMS - 1, 0, -1) %}
    at += (rest % {{ p("D%d" % d) }}) * {{ p("S%d" % d) }};
    rest /= {{ p("D%d" % d) }};
{% endfor %}
    return at + rest * {{ S0 }};
}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let word = (workgroup.x + workgroup.y * groups.x) * {{ WG_X }}u + lane;
    let start = word * 4u;
    if (start >= {{ COUNT }}) { return; }
{% if TO in ("I8", "U8") %}
    var bytes = 0u;
{% for c in range(4) %}
    if (start + {{ c }}u < {{ COUNT }}) {
        let at = address(start + {{ c }}u);
        bytes |= ((x[at >> 2u] >> ((at & 3u) * 8u)) & 255u) << {{ 8 * c }}u;
    }
{% endfor %}
    out[word] = bytes;
{% else %}
{% for c in range(4) %}
    if (start + {{ c }}u < {{ COUNT }}) {
        let at = address(start + {{ c }}u);
        out[start + {{ c }}u] = {{ "f32" if TO == "F32" else "i32" }}({{ number("x", X, "at") }});
    }
{% endfor %}
{% endif %}
}
