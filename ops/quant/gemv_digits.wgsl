{# One row of a times packed w over integers, where four bytes are multiplied at once: about as exact as in
   floats, with less than half of the instructions.

   The elements of a that meet a load of w, a unit of UNIT, become integers by one power of two: 22 bits
   of the largest and its sign, and of the others the bits of the same weight. So each is off by at most
   2^-22 of the largest, about what a sum of their products in f32 is. Each integer is three signed
   digits of 8 bits, q = d0 + 256 d1 + 65536 d2. Codes times digits add up exactly in 32 bits. Then the
   digits' sums become floats, once for a unit and a row of w.

   Where codes that stand for zero meet the large elements, the lower bits of the small ones count. So a
   unit is multiplied in floats where one element is WIDE times as large as all the others together, or
   the largest is 2^FAR times as large as all of four neighbours that are not all zero.

   Work is divided as in gemv_one.wgsl: LANES lanes share a row of w, walk R rows of it, CHUNKS units
   each, and SLICES such groups make a workgroup. With more than one slice they divide the making of
   digits, which meet in workgroup memory (CHUNKS is 1 then).

   UNIT_EDGE: some lane's unit is past the end. K_EDGE: the last unit reaches past K. NORM, PAIRS: as in
   gemv_one.wgsl. Q: see quant/weights.wgsl; one scale a unit. #}
{% from "matmul/operands.wgsl" import at, step, load, store, functions with context %}
{% from "matmul/one_row_reads.wgsl" import norm_quad, quad with context %}
{% from "matmul/one_row_sums.wgsl" import add_up, sums_memory with context %}
{% from "quant/weights.wgsl" import POWER, quant_functions with context %}
{% set QUADS = UNIT // 4 %}
{# vec4 of a that a lane makes digits of. #}
{% set OWN = QUADS // SLICES %}
{# Bytes are signed: of 8-bit codes the top bit is flipped, which takes 128 off. #}
{% set BIAS = 128 if Q.bits == 8 else 0 %}
{% set FIXED = (0 if Q.zeros == "offsets" else Q.zero) - BIAS %}
{# Whether the sum of the unit is needed: a code that is not 0 stands for zero. #}
{% set CENTERED = Q.zeros or FIXED %}
{% set WIDE = 16 %}
{% set FAR = 10 %}
{% set WORDS_OF_SHARE = "vec%d<u32>" % OWN if OWN > 1 else "u32" %}
{{ sums_memory() }}
{% if SLICES > 1 %}
// Of a slice's share of a unit: the largest and the sum of the sizes, by their bits; the least of the
// largest of four; the sum of the integers; the digits, a word for four of them.
var<workgroup> sizes: array<vec2<u32>, {{ SLICES * LANES }}>;
var<workgroup> fours: array<u32, {{ SLICES * LANES }}>;
{% if CENTERED %}
var<workgroup> shares: array<i32, {{ SLICES * LANES }}>;
{% endif %}
var<workgroup> digits: array<{{ WORDS_OF_SHARE }}, {{ 3 * SLICES * LANES }}>;
{% endif %}
{{ quant_functions() }}
{{ functions() }}
// The bits of the largest of four sizes; those of what is not finite are above all others.
fn top_of(x: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}
// The digits of four floats with an integer in their lowest bits: d0, d1 and d2 of all four in a
// word each. A bias makes the digits bytes of one sum, without borrows; flipping top bits takes it
// off. 0x400000 is there already, in the float's own bias.
fn digits_of(x: vec4<f32>) -> vec3<u32> {
    let u = bitcast<vec4<u32>>(x) + vec4<u32>(0x408080u);
    let low = (u.x & 0x00ff00ffu) | ((u.y & 0x00ff00ffu) << 8u);
    let high = (u.z & 0x00ff00ffu) | ((u.w & 0x00ff00ffu) << 8u);
    let middle = (((u.x >> 8u) & 0xffu) | (u.y & 0xff00u))
        | ((((u.z >> 8u) & 0xffu) | (u.w & 0xff00u)) << 16u);
    return vec3<u32>(
        (low & 0xffffu) | (high << 16u), middle, (low >> 16u) | (high & 0xffff0000u)
    ) ^ vec3<u32>(0x80808080u);
}
fn of_digits(t0: i32, t1: i32, t2: i32) -> f32 {
    return f32(t2) * 65536.0 + f32(t1 * 256 + t0);
}
// Unit ``unit`` of row n times its elements of a.
fn in_floats(a0: u32, n: u32, row: u32, unit: u32, g: u32) -> f32 {
    var sum = 0.0;
    var x_sum = 0.0;
    for (var q = 0u; q < {{ QUADS }}u; q += 1u) {
        let k = unit * {{ QUADS }}u + q;
        let x = {{ quad("k", "unit") }}{{ " * " ~ norm_quad("k") if NORM_WEIGHT }};
        let word = weight[row + unit][{{ "q >> 1u" if Q.bits == 4 else "q" }}]{{ " >> ((q & 1u) * 4u)" if Q.bits == 4 }};
        sum += dot(x, four(word) - vec4<f32>({{ "1.0" if Q.zeros == "offsets" else "center_of(n, g)" }}));
        x_sum += dot(x, vec4<f32>(1.0));
    }
    return scale_of(n, g) * {{ POWER }}.0 * sum{{ " + offset_of(n, g) * x_sum" if Q.zeros == "offsets" }};
}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let group = workgroup.x + workgroup.y * groups.x;
    if (group >= ({{ N }} + {{ SLICES * R - 1 }}u) / {{ SLICES * R }}u) { return; }
    let slice = {{ "lane / %du" % LANES if SLICES > 1 else "0u" }};
    let first = {{ "lane %% %du" % LANES if SLICES > 1 else "lane" }};
    let batch = 0u;
    let m = 0u;
    let a0 = {{ at(A, ["", "", ""]) }};
    let n_first = (group * {{ SLICES }}u + slice) * {{ R }}u;
{% for r in range(R) %}
    // Rows past the end are read as the last row, and not stored.
    let n{{ r }} = min(n_first + {{ r }}u, {{ N }} - 1u);
    let w{{ r }} = n{{ r }} * ({{ WORDS }} / 4u);
    var row_sum{{ r }} = 0.0;
{% endfor %}
{% if NORM %}
    var squares = 0.0;
{% endif %}
{% if CHUNKS > 1 %}
    for (var chunk = first; chunk < {{ CHUNKS * LANES }}u; chunk += {{ LANES }}u) {
{% else %}
    {
        let chunk = first;
{% endif %}
        let unit = {{ "min(chunk, %s - 1u)" % UNITS if UNIT_EDGE else "chunk" }};
        let g = {{ "0u" if Q.groups == 1 else "min(unit * %du / %s, %s - 1u)" % (UNIT, p("GROUP"), GROUPS) }};
{% for r in range(R) %}
        let load{{ r }} = weight[w{{ r }} + unit];
{% endfor %}
        var own = 0u;
        // By its bits less 1, by which zero is the largest of all.
        var four_least = 0xffffffffu;
        var size = 0.0;
{% for i in range(OWN) %}
        let k{{ i }} = unit * {{ QUADS }}u + slice * {{ OWN }}u + {{ i }}u;
        {{ "var" if NORM else "let" }} x{{ i }} = {{ quad("k%d" % i, "chunk") }};
{% if NORM %}
        squares += dot(x{{ i }}, x{{ i }});
{% if NORM_WEIGHT %}
        x{{ i }} *= {{ norm_quad("k%d" % i) }};
{% endif %}
{% endif %}
        let top{{ i }} = top_of(x{{ i }});
        own = max(own, top{{ i }});
        four_least = min(four_least, top{{ i }} - 1u);
        size += dot(abs(x{{ i }}), vec4<f32>(1.0));
{% endfor %}
{% if SLICES > 1 %}
        sizes[lane] = vec2<u32>(own, bitcast<u32>(size));
        fours[lane] = four_least;
        workgroupBarrier();
{% for s in range(SLICES) %}
        let size{{ s }} = sizes[first + {{ s * LANES }}u];
        four_least = min(four_least, fours[first + {{ s * LANES }}u]);
{% endfor %}
        let top = {% for s in range(SLICES - 1) %}max(size{{ s }}.x, {% endfor %}size{{ SLICES - 1 }}.x{{ ")" * (SLICES - 1) }};
        let all = {% for s in range(SLICES) %}bitcast<f32>(size{{ s }}.y){{ " + " if not loop.last }}{% endfor %};
{% else %}
        let top = own;
        let all = size;
{% endif %}
        // Not where it is infinite or NaN.
        let wide = top < 0x7f800000u && (bitcast<f32>(top) > {{ WIDE }}.0 * (all - bitcast<f32>(top))
            || four_least < max(top, {{ FAR * 2**23 }}u) - {{ FAR * 2**23 }}u);
        // The power of two that takes the largest to just below 2^22, and its inverse, or NaN where
        // something is not finite, or 0 where the digits do not count.
        let exponent = max(top >> 23u, 24u);
        let up = bitcast<f32>((275u - exponent) << 23u);
        let inverse = select((exponent - 21u) << 23u, 0x7fc00000u, top >= 0x7f800000u);
        let down = bitcast<f32>(select(inverse, 0u, wide));
        // 1.5 * 2^23 leaves no bits for fractions: the integer is in the lowest ones.
{% for i in range(OWN) %}
        let i{{ i }} = x{{ i }} * up + vec4<f32>(12582912.0);
        let made{{ i }} = digits_of(i{{ i }});
{% endfor %}
{% if CENTERED %}
        let whole = bitcast<vec4<i32>>(i0){% for i in range(1, OWN) %} + bitcast<vec4<i32>>(i{{ i }}){% endfor %} - vec4<i32>({{ OWN * 0x4b400000 % 2**32 - (2**32 if OWN * 0x4b400000 % 2**32 >= 2**31 else 0) }});
        let own_sum = whole.x + whole.y + whole.z + whole.w;
{% endif %}
{% if SLICES > 1 %}
{% for d in range(3) %}
        digits[({{ d * SLICES }}u + slice) * {{ LANES }}u + first] = {{ WORDS_OF_SHARE }}({% for i in range(OWN) %}made{{ i }}[{{ d }}]{{ ", " if not loop.last }}{% endfor %});
{% endfor %}
{{ "shares[lane] = own_sum;" if CENTERED }}
        workgroupBarrier();
{% for d in range(3) %}{% for s in range(SLICES) %}
        let share{{ d }}_{{ s }} = digits[{{ (d * SLICES + s) * LANES }}u + first];
{% endfor %}{% endfor %}
{% endif %}
{# d<digit>_<vec4>. A word of 4-bit codes holds those of one vec4 in the lower halves of its bytes, of
   the next in the upper halves. #}
{% for d in range(3) %}
{% for w in range(QUADS) %}
        let d{{ d }}_{{ w }} = {{ "share%d_%d%s" % (d, w // OWN, "[%d]" % (w % OWN) if OWN > 1 else "") if SLICES > 1 else "made%d[%d]" % (w, d) }};
{% endfor %}
{% endfor %}
{% if CENTERED %}
        let sum = {% if SLICES > 1 %}{% for s in range(SLICES) %}shares[{{ s * LANES }}u + first]{{ " + " if not loop.last }}{% endfor %}{% else %}own_sum{% endif %};
        // As digits, of which the lower one takes all that the upper, of 65536, leaves.
        let sum2 = sum >> 16u;
        let sum0 = sum & 0xffff;
{% endif %}
{% if Q.zeros == "offsets" %}
        let x_sum = down * of_digits(sum0, 0, sum2);
{% endif %}
{% for r in range(R) %}
        {
{% if Q.zeros == "bytes" %}
            let zero = i32(zero_of(n{{ r }}, g)){{ " - %d" % BIAS if BIAS }};
{% endif %}
{% for d in range(3) %}
            var t{{ d }} = {{ ("-zero * sum%d" % d if Q.zeros == "bytes" else "%d * sum%d" % (-FIXED, d)) if d != 1 and (Q.zeros == "bytes" or FIXED) else "0" }};
{% endfor %}
{% for word in range(4) %}
{% if Q.bits == 8 %}
            let low{{ word }} = load{{ r }}[{{ word }}] ^ 0x80808080u;
{% else %}
            let low{{ word }} = load{{ r }}[{{ word }}] & 0x0f0f0f0fu;
            let high{{ word }} = (load{{ r }}[{{ word }}] >> 4u) & 0x0f0f0f0fu;
{% endif %}
{% for d in range(3) %}
{% if Q.bits == 8 %}
            t{{ d }} += dot4I8Packed(low{{ word }}, d{{ d }}_{{ word }});
{% else %}
            t{{ d }} += dot4I8Packed(low{{ word }}, d{{ d }}_{{ 2 * word }});
            t{{ d }} += dot4I8Packed(high{{ word }}, d{{ d }}_{{ 2 * word + 1 }});
{% endif %}
{% endfor %}
{% endfor %}
            row_sum{{ r }} += (scale_of(n{{ r }}, g) * down) * of_digits(t0, t1, t2){{ " + offset_of(n%d, g) * x_sum" % r if Q.zeros == "offsets" }};
        }
{% endfor %}
        if (wide) {
{% for r in range(R) %}
            row_sum{{ r }} += in_floats(a0, n{{ r }}, w{{ r }}, unit, g);
{% endfor %}
        }
    }
{{ add_up() }}
}
