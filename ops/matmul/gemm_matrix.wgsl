{# a times w by matrix units: f16 factors, f32 sums, 16 x 16 x 16 at a time by subgroups of 32 lanes.

   A workgroup has BM x BN of the result, a subgroup SM x SN, BK of k at a time through workgroup
   memory. ``a_parts`` and ``row_scales``: what matrix_rows.wgsl made of a, A_PARTS parts. What w is
   made of is fetched as it lies to registers while the tile before is worked on, and becomes
   W_PARTS parts in f16 on its way to workgroup memory. PRODUCTS: pairs of parts that are
   multiplied; what is left out is below 2^-22 of the whole. SPLIT: workgroups split k; sums go to
   ``partial`` and gemm_sum.wgsl goes on.
   DIRECT: subgroups read a from its buffer, where it lies by blocks of 16 x 16.
   In workgroup memory rows of both factors lie along k, eight elements to a vec4, ROW vec4s apart:
   an odd number, for eight rows to meet all banks. K is a multiple of BK.
   KIND: "codes" (see quant/weights.wgsl, C words to a load), "f16", "bf16" or "f32". IN_HALVES:
   codes meet their scales in f16, whose eight neighbours then lie in the order of matrix_rows.wgsl's
   SWAPPED. W_SCALE: the power of two that brings w to f16's range; W_BACK takes it back. #}
{% from "halves.wgsl" import quad %}
{% from "matmul/operands.wgsl" import at, step, load, store, functions with context %}
{% set GROUPS_OF_LANES = (BM // SM) * (BN // SN) %}
{% set LANES = WG_X %}
{% set ROW = BK // 8 + 1 %}
{% set MI = SM // 16 %}
{% set NJ = SN // 16 %}
{% set W_AT = 0 if DIRECT else A_PARTS * BM * ROW %}
{% set SIZE = W_AT + W_PARTS * BN * ROW %}
{% set A_UNITS = BM * BK // 8 %}
{% set A_SLOTS = 0 if DIRECT else A_PARTS * A_UNITS // LANES %}
{# Loads of w: so many to a row of the tile, each of so many elements. #}
{% set PER_LOAD = C * 32 // Q.bits if KIND == "codes" else 8 %}
{% set W_LOADS = BK // PER_LOAD %}
{% set W_UNITS = BN * W_LOADS %}
{% set W_SLOTS = (W_UNITS + LANES - 1) // LANES %}
var<workgroup> tiles: array<vec4<u32>, {{ SIZE }}>;
{{ functions() }}
{% if KIND == "codes" %}
{% from "quant/weights.wgsl" import quant_functions with context %}
{{ quant_functions() }}
{% endif %}
fn packed(x: vec4<f32>, y: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(
        pack2x16float(x.xy), pack2x16float(x.zw), pack2x16float(y.xy), pack2x16float(y.zw)
    );
}
{% if W_PARTS == 2 %}
// What f16 holds of x exactly: eleven bits. The rest fits another eleven but for the last.
fn high_of(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) & vec4<u32>(0xffffe000u));
}
{% endif %}
{% if IN_HALVES %}
// Codes of 4 bits, two to a word at bits 0 and 16, less their zero: 1024 + code is 0x6400 + code.
fn two(word: u32, center: vec2<f16>) -> vec2<f16> {
    return bitcast<vec2<f16>>((word & 0x000f000fu) | 0x64006400u) - center;
}
fn times(d: mat4x2<f16>, scale: f16) -> vec4<u32> {
    return vec4<u32>(
        bitcast<u32>(d[0] * scale), bitcast<u32>(d[1] * scale),
        bitcast<u32>(d[2] * scale), bitcast<u32>(d[3] * scale)
    );
}
{% endif %}
{# Statements that put eight elements of w, vec4s x and y of f32, to their place. #}
{% macro put(place) %}
{% if W_PARTS == 2 %}
            tiles[{{ place }}] = packed(high_of(x), high_of(y));
            tiles[{{ BN * ROW }}u + {{ place }}] = packed(x - high_of(x), y - high_of(y));
{% else %}
            tiles[{{ place }}] = packed(x, y);
{% endif %}
{% endmacro %}
{% macro some(s) -%}
{{ "if (lane < %du) " % (W_UNITS - s * LANES) if (s + 1) * LANES > W_UNITS }}
{%- endmacro %}
{# Statements that fetch what lies at k0 to registers: of a, and of w as it
   lies: what is done with it at once would wait for it. #}
{% macro fetch_a(k0) %}
{% for s in range(A_SLOTS) %}
        a{{ s }} = a_parts[a{{ s }}_at + ({{ k0 }}) / 8u];
{% endfor %}
{% endmacro %}
{% macro fetch_w(k0) %}
{% for s in range(W_SLOTS) %}
        {{ some(s) }}{
{% if KIND == "codes" %}
            w{{ s }} = weight[w{{ s }}_at + ({{ k0 }}) / {{ PER_LOAD }}u];
            let group = {{ "0u" if Q.groups == 1 else "(%s + w%d_k) / %s" % (k0, s, p("GROUP")) }};
            w{{ s }}_scale = scales[(w{{ s }}_n * {{ GROUPS }} + group){{ " >> 1u" if Q.half }}];
{% if Q.zeros == "offsets" %}
            w{{ s }}_zero = zeros[(w{{ s }}_n * {{ GROUPS }} + group){{ " >> 1u" if Q.half }}];
{% elif Q.zeros == "bytes" %}
            w{{ s }}_zero = zeros[w{{ s }}_n * (({{ GROUPS }} + 3u) / 4u) + (group >> 2u)];
{% endif %}
{% elif KIND == "f32" %}
            w{{ s }}_0 = {{ load(W, "w%d_at%s" % (s, step(W, 2, "(%s) / 4u" % k0))) }};
            w{{ s }}_1 = {{ load(W, "w%d_at%s" % (s, step(W, 2, "(%s) / 4u + 1u" % k0))) }};
{% else %}
            w{{ s }} = w[w{{ s }}_at + ({{ k0 }}) / 8u];
{% endif %}
        }
{% endfor %}
{% endmacro %}
{# The registers of w. #}
{% macro registers(s) %}
{% if KIND == "codes" %}
    var w{{ s }}: vec{{ C }}<u32>;
    var w{{ s }}_scale: {{ "u32" if Q.half else "f32" }};
{% if Q.zeros %}
    var w{{ s }}_zero: {{ "u32" if Q.half or Q.zeros == "bytes" else "f32" }};
{% endif %}
{% elif KIND == "f32" %}
    var w{{ s }}_0: vec4<f32>;
    var w{{ s }}_1: vec4<f32>;
{% else %}
    var w{{ s }}: vec4<u32>;
{% endif %}
{% endmacro %}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32,
        @builtin(subgroup_id) subgroup: u32,
        @builtin(subgroup_invocation_id) within: u32) {
    let group = workgroup.x + workgroup.y * groups.x;
    let m_tiles = ({{ M }} + {{ BM - 1 }}u) / {{ BM }}u;
    let n_tiles = ({{ N }} + {{ BN - 1 }}u) / {{ BN }}u;
    if (group >= m_tiles * n_tiles{{ " * " ~ SPLITS if SPLIT }}) { return; }
    // Workgroups that run at the same time share columns: w is the large factor.
    let m0 = group % m_tiles * {{ BM }}u;
    let n0 = group / m_tiles % n_tiles * {{ BN }}u;
    let sub = subgroup % {{ GROUPS_OF_LANES }}u;
    let sub_m = sub % {{ BM // SM }}u * {{ SM }}u;
    let sub_n = sub / {{ BM // SM }}u * {{ SN }}u;
{% if SPLIT %}
    // Of k, from here up to there.
    let split = group / (m_tiles * n_tiles);
    let share = ({{ K }} / {{ BK }}u + {{ SPLITS }} - 1u) / {{ SPLITS }} * {{ BK }}u;
    let first_k = split * share;
    let end_k = min({{ K }}, first_k + share);
{% else %}
    let first_k = 0u;
    let end_k = {{ K }};
{% endif %}
    // What this lane fetches, and where to. Rows past the end are read as the last ones.
{% for s in range(A_SLOTS) %}
    let a{{ s }}_unit = lane + {{ s * LANES % A_UNITS }}u;
    let a{{ s }}_at = ({{ s * LANES // A_UNITS }}u * {{ M }} + min(m0 + a{{ s }}_unit / {{ BK // 8 }}u, {{ M }} - 1u)) * ({{ K }} / 8u)
        + a{{ s }}_unit % {{ BK // 8 }}u;
    let a{{ s }}_to = {{ s * LANES // A_UNITS * BM * ROW }}u + a{{ s }}_unit / {{ BK // 8 }}u * {{ ROW }}u + a{{ s }}_unit % {{ BK // 8 }}u;
    var a{{ s }}: vec4<u32>;
{% endfor %}
{% for s in range(W_SLOTS) %}
    let w{{ s }}_unit = lane + {{ s * LANES }}u;
    let w{{ s }}_row = w{{ s }}_unit / {{ W_LOADS }}u;
    let w{{ s }}_n = min(n0 + w{{ s }}_row, {{ N }} - 1u);
    let w{{ s }}_k = w{{ s }}_unit % {{ W_LOADS }}u * {{ PER_LOAD }}u;
    let w{{ s }}_to = {{ W_AT }}u + w{{ s }}_row * {{ ROW }}u + w{{ s }}_k / 8u;
{% if KIND == "codes" %}
    let w{{ s }}_at = w{{ s }}_n * ({{ WORDS }} / {{ C }}u) + w{{ s }}_unit % {{ W_LOADS }}u;
{% elif KIND == "f32" %}
    let w{{ s }}_at = {{ at(W, ["0u", "w%d_n" % s, ""]) }}{{ step(W, 2, "w%d_k / 4u" % s) }};
{% else %}
    let w{{ s }}_at = {{ at(W, ["0u", "w%d_n" % s, ""]) }} + w{{ s }}_k / 8u;
{% endif %}
{{ registers(s) }}
{% endfor %}
{% for i in range(MI) %}{% for j in range(NJ) %}
    var acc{{ i }}_{{ j }}: subgroup_matrix_result<f32, 16, 16>;
{% endfor %}{% endfor %}
{% if DIRECT %}
    let a_blocks = ({{ M }} + 15u) / 16u;
    let a_part = a_blocks * ({{ K }} / 16u) * 32u;
{% for i in range(MI) %}
    let a_from{{ i }} = min((m0 + sub_m) / 16u + {{ i }}u, a_blocks - 1u) * ({{ K }} / 16u) * 32u;
{% endfor %}
{% else %}
    let a_from = sub_m * {{ ROW }}u;
{% endif %}
    let w_from = {{ W_AT }}u + sub_n * {{ ROW }}u;
{{ fetch_a("first_k") }}
{{ fetch_w("first_k") }}
    for (var k0 = first_k; k0 < end_k; k0 += {{ BK }}u) {
        workgroupBarrier();
{% for s in range(A_SLOTS) %}
        tiles[a{{ s }}_to] = a{{ s }};
{% endfor %}
{% for s in range(W_SLOTS) %}
        {{ some(s) }}{
{% if KIND == "codes" %}
{% if Q.bits == 4 %}
{% set eights = C %}
{% else %}
{% set eights = C // 2 %}
{% endif %}
{% if Q.half or Q.zeros == "bytes" %}
            let group = {{ "0u" if Q.groups == 1 else "(k0 + w%d_k) / %s" % (s, p("GROUP")) }};
{% endif %}
            let scale = {{ "half_of(w%d_scale, w%d_n * %s + group)" % (s, s, p("GROUPS")) if Q.half else "w%d_scale" % s }} * {{ W_SCALE }};
{% if Q.zeros == "offsets" %}
            let offset = vec4<f32>({{ "half_of(w%d_zero, w%d_n * %s + group)" % (s, s, p("GROUPS")) if Q.half else "w%d_zero" % s }} * {{ W_UNIT }});
{% elif Q.zeros == "bytes" %}
            let zero = (w{{ s }}_zero >> ((group & 3u) * 8u)) & 255u;
{% endif %}
{% if IN_HALVES %}
            let center = vec2<f16>(f16({{ "1024.0 + f32(zero)" if Q.zeros else 1024 + Q.zero }}));
{% if W_PARTS == 2 %}
            // Seven bits of the scale: times a code they are exact in f16, and so is what is left.
            let seven = bitcast<f32>(bitcast<u32>(scale) & 0xfffe0000u);
            let high = f16(seven);
            let low = f16(scale - seven);
{% else %}
            let high = f16(scale);
{% endif %}
{% elif Q.zeros != "offsets" %}
            let center = vec4<f32>({{ "bitcast<f32>(0x3f800000u | (zero << %du))" % (23 - Q.bits) if Q.zeros else "center_of(0u, 0u)" }});
{% endif %}
{% for e in range(C if IN_HALVES else 0) %}
            {
                let word = w{{ s }}[{{ e }}];
                let d = mat4x2<f16>(
                    two(word, center), two(word >> 8u, center), two(word >> 4u, center), two(word >> 12u, center)
                );
                tiles[w{{ s }}_to + {{ e }}u] = times(d, high);
{% if W_PARTS == 2 %}
                tiles[w{{ s }}_to + {{ BN * ROW + e }}u] = times(d, low);
{% endif %}
            }
{% endfor %}
{% for e in range(0 if IN_HALVES else eights) %}
            {
{% for v, word in (("x", "w%d[%d]" % (s, e)), ("y", "w%d[%d] >> 4u" % (s, e))) if Q.bits == 4 %}
{% if Q.zeros == "offsets" %}
            let {{ v }} = (four({{ word }}) - vec4<f32>(1.0)) * scale + offset;
{% else %}
            let {{ v }} = (four({{ word }}) - center) * scale;
{% endif %}
{% endfor %}
{% for v, word in (("x", "w%d[%d]" % (s, 2 * e)), ("y", "w%d[%d]" % (s, 2 * e + 1))) if Q.bits == 8 %}
{% if Q.zeros == "offsets" %}
            let {{ v }} = (four({{ word }}) - vec4<f32>(1.0)) * scale + offset;
{% else %}
            let {{ v }} = (four({{ word }}) - center) * scale;
{% endif %}
{% endfor %}
{{ put("w%d_to + %du" % (s, e)) }}
            }
{% endfor %}
{% elif KIND == "f32" %}
            let x = w{{ s }}_0 * {{ W_SCALE }};
            let y = w{{ s }}_1 * {{ W_SCALE }};
{{ put("w%d_to" % s) }}
{% elif KIND == "bf16" %}
            let x = bf16_quad(w{{ s }}.xy) * {{ W_SCALE }};
            let y = bf16_quad(w{{ s }}.zw) * {{ W_SCALE }};
{{ put("w%d_to" % s) }}
{% else %}
            tiles[w{{ s }}_to] = w{{ s }};
{% endif %}
        }
{% endfor %}
        workgroupBarrier();
        let next = k0 + {{ BK }}u;
        if (next < end_k) {
{{ fetch_a("next") }}
{{ fetch_w("next") }}
        }
{% for k in range(BK // 16) %}
        {
{% for q in range(A_PARTS) %}{% for i in range(MI) %}
            let x{{ q }}_{{ i }} = subgroupMatrixLoad<subgroup_matrix_left<f16, 16, 16>, row_major>(
{% if DIRECT %}
                &a_parts, a_from{{ i }}{{ " + a_part" if q }} + k0 * 2u + {{ k * 32 }}u, 2u);
{% else %}
                &tiles, a_from + {{ (q * BM + i * 16) * ROW + k * 2 }}u, {{ ROW }}u);
{% endif %}
{% endfor %}{% endfor %}
{% for j in range(NJ) %}
            {
{% for q in range(W_PARTS) %}
            let y{{ q }} = subgroupMatrixLoad<subgroup_matrix_right<f16, 16, 16>, col_major>(
                &tiles, w_from + {{ (q * BN + j * 16) * ROW + k * 2 }}u, {{ ROW }}u);
{% endfor %}
{% for qa, qw in PRODUCTS %}{% for i in range(MI) %}
            acc{{ i }}_{{ j }} = subgroupMatrixMultiplyAccumulate(x{{ qa }}_{{ i }}, y{{ qw }}, acc{{ i }}_{{ j }});
{% endfor %}{% endfor %}
            }
{% endfor %}
        }
{% endfor %}
    }
    // Sums go through the tiles' memory, each subgroup's by a part of its own.
{% set room = SIZE // GROUPS_OF_LANES // 64 %}
    let mine = sub * {{ 64 * room }}u;
{% set fragments = [] %}
{% for i in range(MI) %}{% for j in range(NJ) %}{{ fragments.append((i, j)) or "" }}{% endfor %}{% endfor %}

{% for some_fragments in fragments | batch(room) %}
    workgroupBarrier();
{% for i, j in some_fragments %}
    subgroupMatrixStore<row_major>(&tiles, mine + {{ 64 * loop.index0 }}u, acc{{ i }}_{{ j }}, 4u);
{% endfor %}
    workgroupBarrier();
{% for i, j in some_fragments %}{% set f = loop.index0 %}{% for t in range(2) %}
    {
        // A lane has four columns of a row.
        let cell = within % 32u + {{ 32 * t }}u;
        let m = m0 + sub_m + {{ i * 16 }}u + cell / 4u;
        let n = n0 + sub_n + {{ j * 16 }}u + cell % 4u * 4u;
        if (m < {{ M }} && n < {{ N }}) {
            // The weight's scale first: it brings sums, of up to 2^45, back to where a row's cannot
            // overflow what fits f32.
            let sum = bitcast<vec4<f32>>(tiles[mine + {{ 64 * f }}u + cell]) * {{ W_BACK }} * row_scales[m];
{% if SPLIT %}
            partial[(split * {{ M }} + m) * (({{ N }} + 3u) / 4u) + n / 4u] = sum;
{% elif PAIRS %}
            let row = m * {{ OUT_N }};
{% for c in (0, 2) %}
            if (n + {{ c }}u < {{ N }}) {
                let column = n / 2u + {{ c // 2 }}u;
                {{ store("row + column", "finish(sum[%d], sum[%d], 0u, m, column)" % (c, c + 1)) }}
            }
{% endfor %}
{% elif OUT_VECTOR %}
            let row = m * {{ OUT_N }};
            let result = vec4<f32>(
{% for c in range(4) %}
                finish(sum[{{ c }}], 0u, m, n + {{ c }}u){{ "," if not loop.last }}
{% endfor %}
            );
            out[(row + n) / 4u] = {{ quad(OUT_CODEC, "result") }};
{% else %}
            let row = m * {{ OUT_N }};
{% for c in range(4) %}
            if (n + {{ c }}u < {{ N }}) {
                {{ store("row + n + %du" % c, "finish(sum[%d], 0u, m, n + %du)" % (c, c)) }}
            }
{% endfor %}
{% endif %}
        }
    }
{% endfor %}{% endfor %}
{% endfor %}
}
