{# Rows of ``a`` as what matrix units take: f16, in PARTS parts whose sum they are.

   A workgroup has a row. It is multiplied by the power of two that brings its largest element to
   between 2^14 and 2^15, so that nothing overflows and, in two parts, 22 bits of what matters stay:
   errors are below 2^-21 of an element or 2^-38 of the row's largest. ``row_scales``: what takes
   that back. A vec4 holds eight neighbours, in the order 0 2 1 3 4 6 5 7 where SWAPPED (the order
   in which packed codes come apart). They lie row by row, part by part, or (BLOCKS) 16 x 16
   elements at a time, along k first. UNITS: of eight, a lane's share of a row. #}
{% from "matmul/operands.wgsl" import at, step, load with context %}
{% from "halves.wgsl" import half_functions %}
{{ half_functions(CODECS) }}
var<workgroup> largest: atomic<u32>;
{% if PARTS == 2 %}
// What f16 holds of x exactly: eleven bits. The rest fits another eleven but for the last.
fn high_of(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) & vec4<u32>(0xffffe000u));
}
// Nothing is left of an infinity or a NaN, which the first part is.
fn rest_of(x: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) < vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), x - high_of(x), finite);
}
{% endif %}
fn packed(x: vec4<f32>, y: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(
{% if SWAPPED %}
        pack2x16float(x.xz), pack2x16float(x.yw), pack2x16float(y.xz), pack2x16float(y.yw)
{% else %}
        pack2x16float(x.xy), pack2x16float(x.zw), pack2x16float(y.xy), pack2x16float(y.zw)
{% endif %}
    );
}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32,
        @builtin(subgroup_invocation_id) within: u32) {
    let m = workgroup.x + workgroup.y * groups.x;
    if (m >= {{ M }}) { return; }
    let units = {{ K }} / 8u;
    let start = {{ at(A, ["0u", "m", ""]) }};
    var most = vec4<u32>();
{% for i in range(UNITS) %}
    var x{{ i }} = vec4<f32>();
    var y{{ i }} = vec4<f32>();
    if (lane + {{ i * WG_X }}u < units) {
        x{{ i }} = {{ load(A, "start" ~ step(A, 2, "(lane + %du) * 2u" % (i * WG_X))) }};
        y{{ i }} = {{ load(A, "start" ~ step(A, 2, "(lane + %du) * 2u + 1u" % (i * WG_X))) }};
    }
    most = max(most, bitcast<vec4<u32>>(x{{ i }}) & vec4<u32>(0x7fffffffu));
    most = max(most, bitcast<vec4<u32>>(y{{ i }}) & vec4<u32>(0x7fffffffu));
{% endfor %}
    let of_subgroup = subgroupMax(max(max(most.x, most.y), max(most.z, most.w)));
    if (within == 0u) { atomicMax(&largest, of_subgroup); }
    workgroupBarrier();
    let bits = atomicLoad(&largest);
    // The exponent. Rows of infinities and of next to nothing get what f32 can hold.
    let exponent = clamp(bits >> 23u, 16u, 254u);
    let scale = bitcast<f32>((268u - exponent) << 23u);
    if (lane == 0u) { row_scales[m] = bitcast<f32>((exponent - 14u) << 23u); }
{% for i in range(UNITS) %}
    if (lane + {{ i * WG_X }}u < units) {
        let u = lane + {{ i * WG_X }}u;
        let x = x{{ i }} * scale;
        let y = y{{ i }} * scale;
{% if BLOCKS %}
        let blocks = ({{ M }} + 15u) / 16u;
        let place = (m / 16u * ({{ K }} / 16u) + u / 2u) * 32u + m % 16u * 2u + u % 2u;
        let part = blocks * ({{ K }} / 16u) * 32u;
{% else %}
        let place = m * units + u;
        let part = {{ M }} * units;
{% endif %}
{% if PARTS == 2 %}
        a_parts[place] = packed(high_of(x), high_of(y));
        a_parts[place + part] = packed(rest_of(x), rest_of(y));
{% else %}
        a_parts[place] = packed(x, y);
{% endif %}
    }
{% endfor %}
}
