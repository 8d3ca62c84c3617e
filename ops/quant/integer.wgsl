{# int8 activations times a packed weight, as gemv.wgsl but over integers: bytes less their zeros are
   multiplied four at a time (dot4I8Packed: an instruction where the device has one, else what the
   compiler makes of it, and the same integers everywhere).

   a holds the activations row by row, four to a word; rows of whole words (WHOLE_WORDS) or not. With
   codes less their zero the activation's zero is taken off a group at once:
   sum (x - zx) (q - zq) = sum x (q - zq) - zx sum (q - zq). Padding is q = zq.
   X_SCALE, X_ZERO: "number", "one" or "rows"; ZERO_DTYPE: of a zero that is a tensor. #}
{% from "matmul/operands.wgsl" import store, functions with context %}
{% from "quant/weights.wgsl" import quant_functions with context %}
{% set OUTS = M_TILE * R %}
{# Sums to an element of the result (PAIRS: two), and elements that the group stores for a row of a. #}
{% set GROUP = 2 if PAIRS else 1 %}
{% set STORED = R // GROUP %}
{% set LEFT = [LANES // 8, 1] | max if LANES <= 64 else 16 %}
{% set PER_WORD = 32 // Q.bits // 4 %}
{% macro open(k4) %}
        {
        let g = {{ "0u" if Q.groups == 1 else "min((%s) * 4u / %s, %s - 1u)" % (k4, p("GROUP"), GROUPS) }};
{% for r in range(R) %}
        let z{{ r }} = zero_of(n{{ r }}, g) * 0x01010101u;
        var codes{{ r }} = 0;
{% for i in range(M_TILE) %}
        var t{{ i }}_{{ r }} = 0;
{% endfor %}{% endfor %}
{% endmacro %}
{% macro close() %}
{% for r in range(R) %}
        let s{{ r }} = scale_of(n{{ r }}, g);
{% for i in range(M_TILE) %}
        sum{{ i }}_{{ r }} += s{{ r }} * f32(t{{ i }}_{{ r }} - x_zero{{ i }} * codes{{ r }});
{% endfor %}{% endfor %}
        }
{% endmacro %}
var<workgroup> partial: array<array<f32, {{ WG_X }}>, {{ OUTS }}>;
{{ quant_functions() }}
{{ functions() }}
// Codes less their zero, as signed bytes.
fn signed_codes(word: u32, zeros_of_four: u32) -> u32 {
{% if Q.bits == 4 %}
    return (((word & 0x0f0f0f0fu) | 0x80808080u) - zeros_of_four) ^ 0x80808080u;
{% else %}
    return word ^ 0x80808080u;
{% endif %}
}
// Four activations from element ``at`` on.
fn four_activations(at: u32) -> u32 {
{% if WHOLE_WORDS %}
    return a[at >> 2u];
{% else %}
    let shift = (at & 3u) * 8u;
    let low = a[at >> 2u] >> shift;
    return select(low, low | (a[(at >> 2u) + 1u] << ((32u - shift) & 31u)), shift != 0u);
{% endif %}
}
fn scale_of_row(m: u32) -> f32 {
    return {{ X_SCALES if X_SCALE == "number" else ("x_scales[0]" if X_SCALE == "one" else "x_scales[m]") }};
}
fn zero_of_row(m: u32) -> i32 {
{% if X_ZERO == "number" %}
    return i32({{ X_ZEROS }});
{% elif ZERO_DTYPE in ("I8", "U8") %}
    let at = {{ "0u" if X_ZERO == "one" else "m" }};
    let byte = (x_zeros[at >> 2u] >> ((at & 3u) * 8u)) & 255u;
    return {{ "i32(byte << 24u) >> 24u" if ZERO_DTYPE == "I8" else "i32(byte)" }};
{% else %}
    return i32(x_zeros[{{ "0" if X_ZERO == "one" else "m" }}]);
{% endif %}
}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let group = workgroup.x + workgroup.y * groups.x;
    let m_tiles = {{ "(%s + %du) / %du" % (M, M_TILE - 1, M_TILE) if TILED else "1u" }};
    let blocks = ({{ N }} + {{ SLICES * R - 1 }}u) / {{ SLICES * R }}u;
    if (group >= m_tiles * blocks) { return; }
    let m0 = {{ "group %% m_tiles * %du" % M_TILE if TILED else "0u" }};
    let block = group / m_tiles;
    let batch = 0u;
    let slice = lane / {{ LANES }}u;
    let first = lane % {{ LANES }}u;
    let n_first = (block * {{ SLICES }}u + slice) * {{ R }}u;
    // Rows past the end are read as the last row, and not stored.
{% for i in range(M_TILE) %}
    let a{{ i }} = min(m0 + {{ i }}u, {{ M }} - 1u) * {{ K }};
    let x_zero{{ i }} = zero_of_row(min(m0 + {{ i }}u, {{ M }} - 1u));
{% endfor %}
{% for r in range(R) %}
    let n{{ r }} = min(n_first + {{ r }}u, {{ N }} - 1u);
    let w{{ r }} = n{{ r }} * ({{ WORDS }} / {{ U }}u);
{% endfor %}
{% for i in range(M_TILE) %}{% for r in range(R) %}
    var sum{{ i }}_{{ r }} = 0.0;
{% endfor %}{% endfor %}
    for (var unit = first; unit < {{ UNITS }}; unit += {{ LANES }}u) {
{% for r in range(R) %}
        let load{{ r }} = weight[w{{ r }} + unit];
{% endfor %}
        let k4 = unit * {{ U * PER_WORD }}u;
{{ open("k4") if PER == "unit" }}
{% for u in range(U) %}
{{ open("k4 + %du" % (u * PER_WORD)) if PER == "word" }}
{% for q in range(PER_WORD) %}
{% set quad = "k4 + %du" % (u * PER_WORD + q) %}
{{ open(quad) if PER == "quad" }}
        {
{% for r in range(R) %}
            let q{{ r }} = signed_codes({{ "load%d" % r ~ ("[%d]" % u if U > 1 else "") }}{{ " >> 4u" if q }}, z{{ r }});
            codes{{ r }} += dot4I8Packed(q{{ r }}, 0x01010101u);
{% endfor %}
{% for i in range(M_TILE) %}
            let x{{ i }} = four_activations(a{{ i }} + ({{ quad }}) * 4u);
{% for r in range(R) %}
            t{{ i }}_{{ r }} += dot4I8Packed(x{{ i }}, q{{ r }});
{% endfor %}{% endfor %}
        }
{{ close() if PER == "quad" }}
{% endfor %}
{{ close() if PER == "word" }}
{% endfor %}
{{ close() if PER == "unit" }}
    }
{% for i in range(M_TILE) %}{% for r in range(R) %}
    partial[{{ i * R + r }}][lane] = sum{{ i }}_{{ r }};
{% endfor %}{% endfor %}
    workgroupBarrier();
    if (first < {{ LEFT }}u) {
{% for o in range(OUTS) %}
        partial[{{ o }}][lane] +=
{% for part in range(1, LANES // LEFT) %}
            {{ "+ " if not loop.first }}partial[{{ o }}][lane + {{ part * LEFT }}u]{{ ";" if loop.last }}
{% endfor %}
{% endfor %}
    }
    workgroupBarrier();
    let m = m0 + first / {{ STORED }}u;
    let n = n_first{{ " / 2u" if PAIRS }} + first % {{ STORED }}u;
    if (first < {{ M_TILE * STORED }}u && m < {{ M }} && n < {{ N }}{{ " / 2u" if PAIRS }}) {
        let start = slice * {{ LANES }}u;
{% for o in range(GROUP) %}
        let total{{ o }} = (partial[first * {{ GROUP }}u + {{ o }}u][start]
{%- for part in range(1, LEFT) %}

            + partial[first * {{ GROUP }}u + {{ o }}u][start + {{ part }}u]
{%- endfor %}) * scale_of_row(m);
{% endfor %}
        {{ store("m * %s + n" % OUT_N, "finish(total0, %sbatch, m, n)" % ("total1, " if PAIRS else "")) }}
    }
}
