{# a times w in tiles: a workgroup computes BM x BN of the result, a lane TM x TN of it in
   registers, BK of k at a time through workgroup memory.

   SLICES times TX * TY lanes split k between them, so that a small result keeps a device busy; the
   first slice adds up. SPLIT: so do workgroups; sums go to ``partial`` and gemm_sum.wgsl goes on.
   In workgroup memory both factors lie k by k in vec4s along m and n, so that a step of k costs
   TM / 4 + TN / 4 reads for TM * TN multiply-adds. Every four steps of k their order changes
   (``^``), for lanes that write side by side to meet different banks. A lane's rows are TM / 4
   times 4 neighbours, 4 * TY apart, its columns likewise; 16 lanes side by side lie 8 along n and
   2 along m, every other one along m.
   While a tile is worked on, the next one is on its way to registers, in blocks of 4 x 4. A_COLUMNS,
   W_COLUMNS: a factor is fetched along m, n; else along k, and turned in registers. An operand
   with a ``quad`` names the function of (row, k) that gives four neighbours. K_EDGE: the last tiles
   reach past K. OUT_VECTOR: out is written four at a time.
   SLOTS: who fetches what. In slot s the lanes from ``from`` up to ``to`` fetch blocks of
   ``operand``; lane ``from`` fetches block ``first``. #}
{% from "halves.wgsl" import quad %}
{% from "matmul/operands.wgsl" import at, step, load, store, functions with context %}
{% set LANES = TX * TY %}
{% set BM = TY * TM %}
{% set BN = TX * TN %}
{% set MI = TM // 4 %}
{% set NJ = TN // 4 %}
{% set K4 = BK // 4 %}
{# The change of order for the steps 4 k4 .. 4 k4 + 3, of rows of vec4s that ``width`` lanes read. #}
{% macro turn(k4, width) -%}
{{ "((%s) * %du) %% %du" % (k4, 8 // K4 if K4 < 8 else 1, 8 if width > 8 else width) }}
{%- endmacro %}
{# How a lane keeps what it fetched of an operand: as it lies. To touch it would be to wait for it,
   so it becomes four f32, 0 past the end of k, on its way to workgroup memory. #}
{% macro packed(o) -%}
{{ o.quad ~ "_packed" if o.quad is defined else "vec2<u32>" if o.vector and o.codec else "vec4<f32>" }}
{%- endmacro %}
{% macro unpacked(o, value, row, k) -%}
{%- set four = "%s(%s, %s, %s)" % (o.quad, value, row, k) if o.quad is defined
   else "%s_quad(%s)" % (o.codec, value) if o.vector and o.codec else value %}
{{- "select(vec4<f32>(), %s, %s < %s)" % (four, k, K) if K_EDGE and (o.vector or o.quad is defined) else four }}
{%- endmacro %}
{# Four neighbours along k of the row at address base, from k on. #}
{% macro along_k(o, base, k) -%}
{%- if o.quad is defined -%}
{{ o.quad }}_fetch({{ base }}, {{ k }})
{%- elif o.vector -%}
{{ o.name }}[{{ base }}{{ step(o, 2, "(%s) / 4u" % k) }}]
{%- else -%}
vec4<f32>(
{%- for c in range(4) %}
{%- set value = load(o, base ~ step(o, 2, "%s + %du" % (k, c))) %}
{{- "select(0.0, %s, %s + %du < %s)" % (value, k, c, K) if K_EDGE else value }}{{ ", " if not loop.last }}
{%- endfor -%}
)
{%- endif %}
{%- endmacro %}
{# Four neighbouring rows at k: base is the address of the first, or base_0 ... of each. #}
{% macro along_rows(o, base, k) -%}
{%- if o.vector -%}
{{ o.name }}[{{ base }}{{ step(o, 2, k) }}]
{%- else -%}
vec4<f32>(
{%- for c in range(4) %}
{%- set value = load(o, base ~ "_%d" % c ~ step(o, 2, k)) %}
{{- "select(0.0, %s, %s < %s)" % (value, k, K) if K_EDGE else value }}{{ ", " if not loop.last }}
{%- endfor -%}
)
{%- endif %}
{%- endmacro %}
{% macro some(part) -%}
{{ "if (lane >= %du && lane < %du) " % (part.from, part.to) if part.from > 0 and part.to < LANES
   else "if (lane >= %du) " % part.from if part.from > 0
   else "if (lane < %du) " % part.to if part.to < LANES }}
{%- endmacro %}
{# Statements that fetch the tiles that start at k0 to registers. #}
{% macro fetch(k0) %}
{% for slot in SLOTS %}{% set s = loop.index0 %}
{% for part in slot %}
{% set o = A if part.operand == "a" else W %}
{% set x = "%s%d" % (part.operand, s) %}
        {{ some(part) }}{
{% for c in range(4) %}
{% if (A_COLUMNS if part.operand == "a" else W_COLUMNS) %}
            {{ x }}_next{{ c }} = {{ along_rows(o, x, "%s + %s_k * 4u + %du" % (k0, x, c)) }};
{% else %}
            {{ x }}_next{{ c }} = {{ along_k(o, "%s_%d" % (x, c), "%s + %s_k * 4u" % (k0, x)) }};
{% endif %}
{% endfor %}
        }
{% endfor %}
{% endfor %}
{% endmacro %}
var<workgroup> tile_a: array<array<array<array<array<vec4<f32>, {{ TY }}>, {{ MI }}>, 4>, {{ K4 }}>, {{ SLICES }}>;
var<workgroup> tile_w: array<array<array<array<array<vec4<f32>, {{ TX }}>, {{ NJ }}>, 4>, {{ K4 }}>, {{ SLICES }}>;
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
    if (group >= m_tiles * n_tiles{{ " * " ~ BATCH if BATCHED }}{{ " * " ~ SPLITS if SPLIT }}) { return; }
    // Workgroups that run at the same time share columns: w is the large factor.
    let m0 = group % m_tiles * {{ BM }}u;
    let n0 = group / m_tiles % n_tiles * {{ BN }}u;
    let batch = {{ "group / (m_tiles * n_tiles)" if BATCHED else "0u" }};
    let slice = {{ "invocation / %du" % LANES if SLICES > 1 else "0u" }};
    let lane = {{ "invocation %% %du" % LANES if SLICES > 1 else "invocation" }};
    let tx = lane / 2u % 8u{{ " + lane / %du * 8u" % (8 * TY) if TX > 8 }};
    let ty = lane / 16u % {{ TY // 2 }}u * 2u + lane % 2u;
{% if SPLIT %}
    // Of k, from here up to there.
    let split = group / (m_tiles * n_tiles);
    let steps = ({{ K }} + {{ BK * SLICES - 1 }}u) / {{ BK * SLICES }}u;
    let share = (steps + {{ SPLITS }} - 1u) / {{ SPLITS }} * {{ BK * SLICES }}u;
    let first_k = split * share;
    let end_k = min({{ K }}, first_k + share);
{% else %}
    let first_k = 0u;
    let end_k = {{ K }};
{% endif %}
    // What this lane fetches. Rows and columns past the end are read as the last ones.
{% for slot in SLOTS %}{% set s = loop.index0 %}
{% for part in slot %}
{% set a_part = part.operand == "a" %}
{% set o = A if a_part else W %}
{% set columns = A_COLUMNS if a_part else W_COLUMNS %}
{% set quads = (BM if a_part else BN) // 4 %}
{% set x = "%s%d" % (part.operand, s) %}
{% set rows, start = (M, "m0") if a_part else (N, "n0") %}
    let {{ x }}_block = {{ "lane + %du" % (part.first - part.from) if part.first >= part.from
        else "max(lane, %du) - %du" % (part.from - part.first, part.from - part.first) }};
    let {{ x }}_k = {{ x }}_block {{ "/ %du" % quads if columns else "%% %du" % K4 }};
    let {{ x }}_row = {{ x }}_block {{ "%% %du" % quads if columns else "/ %du" % K4 }};
{% if columns and o.vector %}
    let {{ x }} = {{ at(o, ["batch", "min(%s / 4u + %s_row, %s / 4u - 1u)" % (start, x, rows), ""]) }};
{% else %}
{% for c in range(4) %}
    let {{ x }}_{{ c }} = {{ at(o, ["batch", "min(%s + %s_row * 4u + %du, %s - 1u)" % (start, x, c, rows), ""]) }};
{% endfor %}
{% endif %}
{% for c in range(4) %}
    var {{ x }}_next{{ c }}: {{ packed(o) }};
{% endfor %}
{% endfor %}
{% endfor %}
{% for k in range(K4) %}
    let tx{{ k }} = tx ^ ({{ turn("%du" % k, TX) }});
    let ty{{ k }} = ty ^ ({{ turn("%du" % k, TY) }});
{% endfor %}
{% for i in range(TM) %}{% for j in range(NJ) %}
    var acc{{ i }}_{{ j }} = vec4<f32>();
{% endfor %}{% endfor %}
    let slice_k = {{ "slice * %du" % BK if SLICES > 1 else "0u" }};
{{ fetch("first_k + slice_k") }}
    for (var k0 = first_k; k0 < end_k; k0 += {{ BK * SLICES }}u) {
        workgroupBarrier();
{% for slot in SLOTS %}{% set s = loop.index0 %}
{% for part in slot %}
{% set x = "%s%d" % (part.operand, s) %}
{% set width = TY if part.operand == "a" else TX %}
{% set o = A if part.operand == "a" else W %}
{% set columns = A_COLUMNS if part.operand == "a" else W_COLUMNS %}
        {{ some(part) }}{
{% for c in range(4) %}
{% set k = "k0 + slice_k + %s_k * 4u%s" % (x, " + %du" % c if columns) %}
            let fetched_{{ c }} = {{ unpacked(o, "%s_next%d" % (x, c), "%s_%d" % (x, c), k) }};
{% endfor %}
            let place = ({{ x }}_row % {{ width }}u) ^ ({{ turn(x ~ "_k", width) }});
{% for c in range(4) %}
            tile_{{ part.operand }}[slice][{{ x }}_k][{{ c }}][{{ x }}_row / {{ width }}u][place] =
{% if (A_COLUMNS if part.operand == "a" else W_COLUMNS) %}
                fetched_{{ c }};
{% else %}
                vec4<f32>({% for d in range(4) %}fetched_{{ d }}[{{ c }}]{{ ", " if not loop.last }}{% endfor %});
{% endif %}
{% endfor %}
        }
{% endfor %}
{% endfor %}
        workgroupBarrier();
        let next = k0 + {{ BK * SLICES }}u;
        if (next < end_k) {
{{ fetch("next + slice_k") }}
        }
{% for k in range(K4) %}{% for c in range(4) %}
        {
{% for i in range(MI) %}
            let x{{ i }} = tile_a[slice][{{ k }}][{{ c }}][{{ i }}][ty{{ k }}];
{% endfor %}
{% for j in range(NJ) %}
            let y{{ j }} = tile_w[slice][{{ k }}][{{ c }}][{{ j }}][tx{{ k }}];
{% endfor %}
{% for j in range(NJ) %}{% for i in range(TM) %}
            acc{{ i }}_{{ j }} += x{{ i // 4 }}[{{ i % 4 }}] * y{{ j }};
{% endfor %}{% endfor %}
        }
{% endfor %}{% endfor %}
    }
{% if SLICES > 1 %}
    // The first slice adds up the others' sums, as many at a time as tile_w holds.
{% set sums = [] %}
{% for i in range(TM) %}{% for j in range(NJ) %}{{ sums.append("acc%d_%d" % (i, j)) or "" }}{% endfor %}{% endfor %}

{% set room = BK * NJ // TY %}
{% for t in range(room if room < TM * NJ else TM * NJ) %}
    let cell{{ t }} = {{ t * TY }}u + ty;
{% endfor %}
{% for group in sums | batch(room) %}
    workgroupBarrier();
{% for acc in group %}{% set cell = "cell%d" % loop.index0 %}
    tile_w[slice][{{ cell }} / {{ 4 * NJ }}u][{{ cell }} / {{ NJ }}u % 4u][{{ cell }} % {{ NJ }}u][tx] = {{ acc }};
{% endfor %}
    workgroupBarrier();
{% for acc in group %}{% set cell = "cell%d" % loop.index0 %}{% for o in range(1, SLICES) %}
    {{ acc }} += tile_w[{{ o }}][{{ cell }} / {{ 4 * NJ }}u][{{ cell }} / {{ NJ }}u % 4u][{{ cell }} % {{ NJ }}u][tx];
{% endfor %}{% endfor %}
{% endfor %}
    if (slice != 0u) { return; }
{% endif %}
{% for i in range(TM) %}
    if (m0 + ty * 4u + {{ i // 4 * 4 * TY + i % 4 }}u < {{ M }}) {
        let m = m0 + ty * 4u + {{ i // 4 * 4 * TY + i % 4 }}u;
        var n = n0 + tx * 4u;
{% if SPLIT %}
        let row = (split * {{ M }} + m) * (({{ N }} + 3u) / 4u);
{% for j in range(NJ) %}
        if (n < {{ N }}) { partial[row + n / 4u] = acc{{ i }}_{{ j }}; }
        n += {{ 4 * TX }}u;
{% endfor %}
{% else %}
        let row = (batch * {{ M }} + m) * {{ OUT_N }};
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
{% endif %}
    }
{% endfor %}
}
