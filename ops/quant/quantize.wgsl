{# out[i] = clamp(round(x[i] * (1 / scale)) + zero), a word of four elements a thread. ZERO_FIRST: the
   zero point is added before rounding. Past the end a word holds zeros. #}
{% from "quant/bytes.wgsl" import number, block_of with context %}
fn one(i: u32) -> u32 {
    let s = {{ block_of("i") }};
    let scaled = x[i] * (1.0 / {{ number("scales", SCALE, "s") }});
    let zero = {{ number("zeros", ZERO, "s") }};
    let value = {{ "round(scaled + zero)" if ZERO_FIRST else "round(scaled) + zero" }};
    return u32(i32(clamp(value, {{ LOW }}, {{ HIGH }}))) & 255u;
}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let word = (workgroup.x + workgroup.y * groups.x) * {{ WG_X }}u + lane;
    let start = word * 4u;
    if (start >= {{ COUNT }}) { return; }
    var bytes = one(start);
{% for c in range(1, 4) %}
    if (start + {{ c }}u < {{ COUNT }}) { bytes |= one(start + {{ c }}u) << {{ 8 * c }}u; }
{% endfor %}
    out[word] = bytes;
}
