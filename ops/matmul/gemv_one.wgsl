{# One row of a times w, for decode: LANES lanes hold their share of the row in registers and walk R
   rows of w with it, so that a weight costs little more than its product. SLICES such groups make a
   workgroup. Then the lanes' sums are added up.

   A load of w, a unit, meets XQ vec4 of a; a lane takes U units at once, LANES apart, CHUNKS times.
   UNITS: of a row.
   UNIT_EDGE: some lane's unit is past the end. K_EDGE: the last unit reaches past K. PAIRS: two rows
   of w, side by side, give one element of the result; R is even.

   NORM: a is a row before its RMS norm. The weights of the norm (NORM_WEIGHT, an operand or none)
   go onto the lanes' shares, the sum of squares is added up with the products, and the root
   scales what is finished.

   Q (see quant/weights.wgsl): w is packed, with one scale a unit. A code stays where it is in its
   word, as bits of the mantissa of a float from 1 to 2: less its center, that is exactly
   (code - zero) * 2^(place - 23). Powers of two by place go onto a, where all rows share them. #}
{% from "matmul/operands.wgsl" import at, step, load, store, functions with context %}
{% from "matmul/one_row_reads.wgsl" import norm_quad, quad with context %}
{% from "matmul/one_row_sums.wgsl" import add_up, sums_memory with context %}
{% if Q %}
{% from "quant/weights.wgsl" import quant_functions with context %}
{# For each vec4 of a and component: the code's place after a shift of the word (0 or SHIFT). #}
{% set SHIFT = 12 if Q.bits == 4 else 16 %}
{% set PLACES = [[0, 8, 16, 12], [4, 12, 8, 16]] if Q.bits == 4 else [[0, 8, 0, 8]] %}
{% set SHIFTED = [[0, 0, 0, 1], [0, 0, 1, 1]] if Q.bits == 4 else [[0, 0, 1, 1]] %}
{% set ONES = 15 if Q.bits == 4 else 255 %}
{% set KINDS = PLACES | length %}
{% macro centers(r, kind) -%}
{%- if Q.zeros == "offsets" -%}
vec4<f32>(1.0)
{%- elif Q.zeros == "bytes" -%}
bitcast<vec4<f32>>((vec4<u32>(zero_of(n{{ r }}, g)) << vec4<u32>({{ PLACES[kind] | join("u, ") }}u)) | vec4<u32>(0x3f800000u))
{%- else -%}
bitcast<vec4<f32>>(vec4<u32>({% for place in PLACES[kind] %}{{ 0x3f800000 + Q.zero * 2 ** place }}u{{ ", " if not loop.last }}{% endfor %}))
{%- endif -%}
{%- endmacro %}
{% endif %}
{{ sums_memory() }}
{% if Q %}
{{ quant_functions() }}
{% endif %}
{{ functions() }}
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
{# Unit u of the lane in chunk, and whether it is there. #}
{% macro unit(u) -%}
{{ "min(chunk + %du, %s - 1u)" % (u * LANES, UNITS) if UNIT_EDGE else "chunk + %du" % (u * LANES) }}
{%- endmacro %}
{# The lane's share of a for unit u of a chunk: x<u>_<q>, or y<u>_<q> with powers of two for packed w. #}
{% macro fetch_row(u) %}
{% for q in range(XQ) %}
        let k{{ u }}_{{ q }} = unit{{ u }} * {{ XQ }}u + {{ q }}u;
{% set k = "k%d_%d" % (u, q) %}
        {{ "var" if NORM else "let" }} x{{ u }}_{{ q }} = {{ quad(k, "chunk + %du" % (u * LANES)) }};
{% if NORM %}
        squares += dot(x{{ u }}_{{ q }}, x{{ u }}_{{ q }});
{% if NORM_WEIGHT %}
        x{{ u }}_{{ q }} *= {{ norm_quad(k) }};
{% endif %}
{% endif %}
{% endfor %}
{% if Q %}
        let g{{ u }} = {{ "0u" if Q.groups == 1 else "min(unit%d * %du / %s, %s - 1u)" % (u, 4 * XQ, p("GROUP"), GROUPS) }};
{% if Q.zeros == "offsets" %}
        let x_sum{{ u }} = dot({% for q in range(XQ) %}x{{ u }}_{{ q }}{{ " + " if not loop.last }}{% endfor %}, vec4<f32>(1.0));
{% endif %}
{% for q in range(XQ) %}
        let y{{ u }}_{{ q }} = x{{ u }}_{{ q }} * vec4<f32>({% for place in PLACES[q % KINDS] %}{{ 2.0 ** -place }}{{ ", " if not loop.last }}{% endfor %});
{% endfor %}
{% endif %}
{% endmacro %}
{# Unit u of row r of w. #}
{% macro fetch(u, r) -%}
{{ "weight[w%d + unit%d]" % (r, u) if Q else "w[w%d%s]" % (r, step(W, 2, "unit%d" % u)) }}
{%- endmacro %}
{# Adds the products of unit u with row r, loaded as ``word``, to sum<r>. #}
{% macro multiply(u, r, words) %}
{% if Q %}
            {
                let g = g{{ u }};
                var t = vec4<f32>();
{% for kind in range(KINDS) %}
                let c{{ kind }} = {{ centers(r, kind) }};
{% endfor %}
{% for word in range(4) %}
                let word{{ word }} = {{ words }}[{{ word }}];
                let high{{ word }} = word{{ word }} >> {{ SHIFT }}u;
{% for kind in range(KINDS) %}
                t += y{{ u }}_{{ word * KINDS + kind }} * (bitcast<vec4<f32>>((vec4<u32>({% for s in SHIFTED[kind] %}{{ "high" if s else "word" }}{{ word }}{{ ", " if not loop.last }}{% endfor %})
                    & vec4<u32>({% for place in PLACES[kind] %}{{ ONES * 2 ** place }}u{{ ", " if not loop.last }}{% endfor %})) | vec4<u32>(0x3f800000u)) - c{{ kind }});
{% endfor %}
{% endfor %}
                sum{{ r }} += scale_of(n{{ r }}, g) * 8388608.0 * (t.x + t.y + t.z + t.w){{ " + offset_of(n%d, g) * x_sum%d" % (r, u) if Q.zeros == "offsets" }};
            }
{% elif W.width == 8 %}
            sum{{ r }} += {{ W.codec }}_quad({{ words }}.xy) * x{{ u }}_0;
            sum{{ r }} += {{ W.codec }}_quad({{ words }}.zw) * x{{ u }}_1;
{% else %}
            sum{{ r }} += {{ "%s_quad(%s)" % (W.codec, words) if W.codec else words }} * x{{ u }}_0;
{% endif %}
{% endmacro %}
{# Rows from n_first on. Rows past the end are read as the last row, and not stored. #}
{% macro open_rows() %}
{% for r in range(R) %}
        let n{{ r }} = min(n_first + {{ r }}u, {{ N }} - 1u);
        let w{{ r }} = {{ "n%d * (%s / 4u)" % (r, WORDS) if Q else at(W, ["", "n%d" % r, ""]) }};
{% endfor %}
{% endmacro %}
{% if NORM %}
    var squares = 0.0;
{% endif %}
    let n_first = (group * {{ SLICES }}u + slice) * {{ R }}u;
{{ open_rows() }}
{% for r in range(R) %}
    var sum{{ r }} = {{ "0.0" if Q else "vec4<f32>()" }};
{% endfor %}
{% if CHUNKS > 1 %}
    for (var chunk = first; chunk < {{ CHUNKS * LANES * U }}u; chunk += {{ LANES * U }}u) {
{% else %}
    {
        let chunk = first;
{% endif %}
{% for u in range(U) %}
        let unit{{ u }} = {{ unit(u) }};
{% for r in range(R) %}
        let load{{ u }}_{{ r }} = {{ fetch(u, r) }};
{% endfor %}
{% endfor %}
{% for u in range(U) %}
{{ fetch_row(u) }}
{% for r in range(R) %}
{{ multiply(u, r, "load%d_%d" % (u, r)) }}
{% endfor %}
{% endfor %}
    }
{% for r in range(R) %}
    let row_sum{{ r }} = {{ "sum%d" % r if Q else "sum%d.x + sum%d.y + sum%d.z + sum%d.w" % (r, r, r, r) }};
{% endfor %}
{{ add_up() }}
}
