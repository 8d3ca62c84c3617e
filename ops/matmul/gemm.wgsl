{# a times w in tiles: a workgroup computes BM x BN of the result, a lane TM x TN of it in
   registers, BK of k at a time through workgroup memory.

   SLICES times TX * TY lanes split k between them, so that a small result keeps a device busy; the
   first slice adds up. Its lanes lie TX along n and TY along m. In workgroup memory a is kept in
   vec4s along k and w in vec4s along n, so that four steps of k cost TM + TN reads for
   4 * TM * TN multiply-adds and no two lanes side by side meet in a bank. Rows of a lane lie TY
   apart, its columns 4 * TX. While a tile is worked on, the next one is on its way to registers.
   W_COLUMNS: w is fetched along n, else along k and turned in registers. An operand with a ``quad``
   names the function of (row, k) that gives four neighbours. K_EDGE: the last tiles reach past K.
   OUT_VECTOR: out is written four at a time. TX * TY divides BM * BK / 4 and BN * BK / 16. #}
{% from "halves.wgsl" import quad %}
{% from "matmul/operands.wgsl" import at, step, load, store, functions with context %}
{% set LANES = TX * TY %}
{% set BM = TY * TM %}
{% set BN = TX * TN %}
{% set NJ = TN // 4 %}
{% set K4 = BK // 4 %}
{% set A_LOADS = BM * K4 // LANES %}
{% set W_LOADS = BN // 4 * K4 // LANES %}
{# What is fetched stays in registers as it is stored while a tile is worked on: to take elements of
   16 bits apart at once would be to wait for them. #}
{% macro fetched_type(o) -%}
{{ "vec2<u32>" if o.codec is defined and o.codec and o.vector else "vec4<f32>" }}
{%- endmacro %}
{% macro elements(o, fetched) -%}
{{ "%s_quad(%s)" % (o.codec, fetched) if fetched_type(o) == "vec2<u32>" else fetched }}
{%- endmacro %}
{# Four neighbours along k of the row at address base, from k on; 0 past the end. #}
{% macro along_k(o, base, k) -%}
{%- if o.quad is defined %}
{%- set value = "%s(%s, %s)" % (o.quad, base, k) %}
{{- "select(vec4<f32>(), %s, %s < %s)" % (value, k, K) if K_EDGE else value }}
{%- elif o.vector %}
{%- set value = "%s[%s]" % (o.name, base ~ step(o, 2, "(%s) / 4u" % k)) %}
{{- "select(%s(), %s, %s < %s)" % (fetched_type(o), value, k, K) if K_EDGE else value }}
{%- else -%}
vec4<f32>(
{%- for c in range(4) %}
{%- set value = load(o, base ~ step(o, 2, "%s + %du" % (k, c))) %}
{{- "select(0.0, %s, %s + %du < %s)" % (value, k, c, K) if K_EDGE else value }}{{ ", " if not loop.last }}
{%- endfor -%}
)
{%- endif %}
{%- endmacro %}
{# Four neighbours along n at k: w<s> is the address of the first, or w<s>_0 ... of each. #}
{% macro along_n(o, s, k) -%}
{%- if o.vector %}
{%- set value = "%s[%s]" % (o.name, "w%d" % s ~ step(o, 2, k)) %}
{{- "select(%s(), %s, %s < %s)" % (fetched_type(o), value, k, K) if K_EDGE else value }}
{%- else -%}
vec4<f32>(
{%- for c in range(4) %}
{%- set value = load(o, "w%d_%d" % (s, c) ~ step(o, 2, k)) %}
{{- "select(0.0, %s, %s < %s)" % (value, k, K) if K_EDGE else value }}{{ ", " if not loop.last }}
{%- endfor -%}
)
{%- endif %}
{%- endmacro %}
{# Reads the lane's share of the tiles at k0 into fetched_*. #}
{% macro fetch(k0) %}
{% for s in range(A_LOADS) %}
        fetched_a{{ s }} = {{ along_k(A, "a%d" % s, "%s + a_k%d * 4u" % (k0, s)) }};
{% endfor %}
{% for s in range(W_LOADS) %}{% for c in range(4) %}
{% if W_COLUMNS %}
        fetched_w{{ s }}_{{ c }} = {{ along_n(W, s, "%s + w_k%d * 4u + %du" % (k0, s, c)) }};
{% else %}
        fetched_w{{ s }}_{{ c }} = {{ along_k(W, "w%d_%d" % (s, c), "%s + w_k%d * 4u" % (k0, s)) }};
{% endif %}
{% endfor %}{% endfor %}
{% endmacro %}
var<workgroup> tile_a: array<array<array<array<vec4<f32>, {{ TY }}>, {{ TM }}>, {{ K4 }}>, {{ SLICES }}>;
var<workgroup> tile_w: array<array<array<array<vec4<f32>, {{ TX }}>, {{ NJ }}>, {{ BK }}>, {{ SLICES }}>;
{{ functions() }}
{% if W.quad is defined %}
{% from "quant/weights.wgsl" import quant_functions, tile_function with context %}
{{ quant_functions() }}
{{ tile_function() }}
{% endif %}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) invocation: u32) {
    let group = workgroup.x + workgroup.y * groups.x;
    let m_tiles = ({{ M }} + {{ BM - 1 }}u) / {{ BM }}u;
    let n_tiles = ({{ N }} + {{ BN - 1 }}u) / {{ BN }}u;
    if (group >= m_tiles * n_tiles{{ " * " ~ BATCH if BATCHED }}) { return; }
    // Workgroups that run at the same time share columns: w is the large factor.
    let m0 = group % m_tiles * {{ BM }}u;
    let n0 = group / m_tiles % n_tiles * {{ BN }}u;
    let batch = {{ "group / (m_tiles * n_tiles)" if BATCHED else "0u" }};
    let slice = {{ "invocation / %du" % LANES if SLICES > 1 else "0u" }};
    let lane = {{ "invocation %% %du" % LANES if SLICES > 1 else "invocation" }};
    let tx = lane % {{ TX }}u;
    let ty = lane / {{ TX }}u;
    // What this lane fetches. Rows and columns past the end are read as the last ones.
{% for s in range(A_LOADS) %}
    let a_k{{ s }} = (lane + {{ s * LANES }}u) {{ "%% %du" % K4 if A_ALONG_K else "/ %du" % BM }};
    let a_m{{ s }} = (lane + {{ s * LANES }}u) {{ "/ %du" % K4 if A_ALONG_K else "%% %du" % BM }};
    let a{{ s }} = {{ at(A, ["batch", "min(m0 + a_m%d, %s - 1u)" % (s, M), ""]) }};
{% endfor %}
{% for s in range(W_LOADS) %}
    let w_k{{ s }} = (lane + {{ s * LANES }}u) {{ "/ %du" % (BN // 4) if W_COLUMNS else "%% %du" % K4 }};
    let w_n{{ s }} = (lane + {{ s * LANES }}u) {{ "%% %du" % (BN // 4) if W_COLUMNS else "/ %du" % K4 }};
{% if W_COLUMNS and W.vector %}
    let w{{ s }} = {{ at(W, ["batch", "min(n0 / 4u + w_n%d, %s / 4u - 1u)" % (s, N), ""]) }};
{% else %}
{% for c in range(4) %}
    let w{{ s }}_{{ c }} = {{ at(W, ["batch", "min(n0 + w_n%d * 4u + %du, %s - 1u)" % (s, c, N), ""]) }};
{% endfor %}
{% endif %}
{% endfor %}
{% for s in range(A_LOADS) %}
    var fetched_a{{ s }}: {{ fetched_type(A) }};
{% endfor %}
{% for s in range(W_LOADS) %}{% for c in range(4) %}
    var fetched_w{{ s }}_{{ c }}: {{ fetched_type(W) }};
{% endfor %}{% endfor %}
{% for i in range(TM) %}{% for j in range(NJ) %}
    var acc{{ i }}_{{ j }} = vec4<f32>();
{% endfor %}{% endfor %}
    let slice_k = slice * {{ BK }}u;
{{ fetch("slice_k") }}
    for (var k0 = 0u; k0 < {{ K }}; k0 += {{ BK * SLICES }}u) {
        workgroupBarrier();
{% for s in range(A_LOADS) %}
        tile_a[slice][a_k{{ s }}][a_m{{ s }} / {{ TY }}u][a_m{{ s }} % {{ TY }}u] = {{ elements(A, "fetched_a%d" % s) }};
{% endfor %}
{% for s in range(W_LOADS) %}
{% for c in range(4) %}
        let row{{ s }}_{{ c }} = {{ elements(W, "fetched_w%d_%d" % (s, c)) }};
{% endfor %}
{% for c in range(4) %}
        tile_w[slice][w_k{{ s }} * 4u + {{ c }}u][w_n{{ s }} / {{ TX }}u][w_n{{ s }} % {{ TX }}u] =
{% if W_COLUMNS %}
            row{{ s }}_{{ c }};
{% else %}
            vec4<f32>({% for d in range(4) %}row{{ s }}_{{ d }}[{{ c }}]{{ ", " if not loop.last }}{% endfor %});
{% endif %}
{% endfor %}{% endfor %}
        workgroupBarrier();
        let next = k0 + {{ BK * SLICES }}u;
        if (next < {{ K }}) {
{{ fetch("next + slice_k") }}
        }
{% for k in range(K4) %}
        {
{% for i in range(TM) %}
            let x{{ i }} = tile_a[slice][{{ k }}][{{ i }}][ty];
{% endfor %}
{% for c in range(4) %}{% for j in range(NJ) %}
            let y{{ c }}_{{ j }} = tile_w[slice][{{ k * 4 + c }}][{{ j }}][tx];
{% for i in range(TM) %}
            acc{{ i }}_{{ j }} += x{{ i }}[{{ c }}] * y{{ c }}_{{ j }};
{% endfor %}
{% endfor %}{% endfor %}
        }
{% endfor %}
    }
{% if SLICES > 1 %}
    // The first slice adds up the others' sums, as many rows at a time as tile_w holds.
{% set rows = [TM, BK // TY] | min %}
{% for first in range(0, TM, rows) %}
    workgroupBarrier();
{% for i in range(first, [TM, first + rows] | min) %}{% for j in range(NJ) %}
    tile_w[slice][{{ (i - first) * TY }}u + ty][{{ j }}][tx] = acc{{ i }}_{{ j }};
{% endfor %}{% endfor %}
    workgroupBarrier();
{% for i in range(first, [TM, first + rows] | min) %}{% for j in range(NJ) %}{% for o in range(1, SLICES) %}
    acc{{ i }}_{{ j }} += tile_w[{{ o }}][{{ (i - first) * TY }}u + ty][{{ j }}][tx];
{% endfor %}{% endfor %}{% endfor %}
{% endfor %}
    if (slice != 0u) { return; }
{% endif %}
{% for i in range(TM) %}
    if (m0 + ty + {{ i * TY }}u < {{ M }}) {
        let m = m0 + ty + {{ i * TY }}u;
        let row = (batch * {{ M }} + m) * {{ OUT_N }};
        var n = n0 + tx * 4u;
{% for j in range(NJ) %}
{% if PAIRS %}
{% for c in (0, 2) %}
        if (n + {{ c }}u < {{ N }}) {
            let column = n / 2u + {{ c // 2 }}u;
            let both = vec2<f32>(acc{{ i }}_{{ j }}[{{ c }}], acc{{ i }}_{{ j }}[{{ c + 1 }}]);
            {{ store("row + column", "finish(both.x, both.y, batch, m, column)") }}
        }
{% endfor %}
{% elif OUT_VECTOR %}
        if (n < {{ N }}) {
            let result = vec4<f32>(
{% for c in range(4) %}
                finish(acc{{ i }}_{{ j }}[{{ c }}], batch, m, n + {{ c }}u){{ "," if not loop.last }}
{% endfor %}
            );
            out[(row + n) / 4u] = {{ quad(OUT_CODEC, "result") }};
        }
{% else %}
{% for c in range(4) %}
        if (n + {{ c }}u < {{ N }}) {
            {{ store("row + n + %du" % c, "finish(acc%d_%d[%d], batch, m, n + %du)" % (i, j, c, c)) }}
        }
{% endfor %}
{% endif %}
        n += {{ 4 * TX }}u;
{% endfor %}
    }
{% endfor %}
}
