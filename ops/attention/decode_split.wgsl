{# Attention of TILE_ROWS rows of one KV head over one split of the context: workgroup (split,
   KV head + HEADS * tile of rows, batch). Walks tiles of TILE positions:
     scores   LANES threads a position, each a share of the dot products with all rows
     softmax  SOFTMAX_LANES threads a row: running maximum and sum, probabilities for the tile
     values   UNITS threads a position, GROUPS positions at a time, all rows
   and leaves, per row and split, the unnormalised sum of values and (maximum, sum of weights).

   sums: [batch, KV head, row, split][UNITS], stats: [batch, KV head, row, split].

   FRESH: one position, whose query and key are not yet rotated and whose key and value are not yet
   in the caches. Every workgroup rotates them for itself; position START counts as what is fresh,
   rounded as the cache stores it, and one workgroup writes it to the caches. Nobody reads it there,
   not even to throw it away: WGSL orders no read of one workgroup and write of another. So reads end
   at the position before START, and go to position 1 where START is 0 (the caches have two). From
   START on, V is what is fresh: what the cache holds there may be NaN, and no weight makes that 0. #}
{% include "attention/load.wgsl" %}
{% set QUADS = (TILE_ROWS + 3) // 4 %}
{% set LANE_STRIDE = TILE * QUADS + 2 %}
{% set PER_PASS = WG_X // LANES %}
{% set PASSES = TILE // PER_PASS %}
{% set OWN = TILE // SOFTMAX_LANES %}
{% set STEPS = TILE // GROUPS %}
{% set SHARE = (UNITS + LANES - 1) // LANES %}
{% set LOWEST = "-1.7e38f" %}
{# The last position that is read, and where positions are counted from. #}
{% set LAST = "last_old" if FRESH else "end - 1u" %}
{% set K_FROM, V_FROM = ("k_old", "v_old") if FRESH else ("k_at", "v_at") %}

{% if FRESH %}
{% from "halves.wgsl" import quad, read %}
{% macro stored(codec, value) -%}
{{ "%s_quad(%s_words(%s))" % (codec, codec, value) if codec else value }}
{%- endmacro %}
{% set HALF = UNITS // 2 %}
var<workgroup> fresh_k: array<vec4<f32>, {{ UNITS }}>;
var<workgroup> fresh_v: array<vec4<f32>, {{ UNITS }}>;
{% for x in ("cos", "sin") %}
{% set X = x | upper %}
{% set place = "%s + batch * %s + (%%s) * %s" % (p(X ~ "_AT"), p(X ~ "_B"), p(X ~ "_D")) %}
fn {{ x }}_of(batch: u32, unit: u32) -> vec4<f32> {
    return vec4<f32>(
{% for c in range(4) %}
{% set d = "unit * 2u + %du" % (c // 2) if INTERLEAVED else "unit * 4u + %du" % c %}
        {{ read(FRESH[x].name, FRESH[x].codec, false, place % d) }}{{ "," if not loop.last }}
{% endfor %}
    );
}
{% endfor %}
// Unit ``unit`` of the rotated head that starts at ``at``.
fn rotated(at: u32, unit: u32, batch: u32) -> vec4<f32> {
    let own = load_q(at, unit);
    let cosine = cos_of(batch, unit);
    let sine = sin_of(batch, unit);
{% if INTERLEAVED %}
    return own * cosine + vec4<f32>(-own.y, own.x, -own.w, own.z) * sine;
{% else %}
    let lower = unit < {{ HALF }}u;
    let other = load_q(at, select(unit - {{ HALF }}u, unit + {{ HALF }}u, lower));
    return own * cosine + select(other, -other, lower) * sine;
{% endif %}
}
{% endif %}
var<workgroup> queries: array<array<vec4<f32>, {{ UNITS }}>, {{ TILE_ROWS }}>;
// Shares of dot products, [lane][position][rows / 4], then sums of values.
var<workgroup> pool: array<vec4<f32>, {{ POOL }}>;
var<workgroup> weights: array<array<f32, {{ TILE_ROWS }}>, {{ TILE }}>;
var<workgroup> partial: array<array<f32, {{ SOFTMAX_LANES }}>, {{ TILE_ROWS }}>;
var<workgroup> rescale: array<f32, {{ TILE_ROWS }}>;

@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let head = workgroup.y % {{ HEADS }}u;
    let first_row = workgroup.y / {{ HEADS }}u * {{ TILE_ROWS }}u;
    let batch = workgroup.z;
    let begin = workgroup.x * {{ SPAN }};
    let end = min(begin + {{ SPAN }}, {{ LENGTH }});

    let q_at = {{ Q_AT }} + batch * {{ Q_B }} + head * {{ GROUP }}u * {{ Q_H }};
    for (var i = thread; i < {{ TILE_ROWS * UNITS }}u; i += {{ WG_X }}u) {
        let row = first_row + i / {{ UNITS }}u;
        var value = vec4<f32>(0.0);
        if (row < {{ ROWS }}) {
{% if FRESH %}
            value = rotated(q_at + row * {{ Q_H }}, i % {{ UNITS }}u, batch);
{% else %}
            value = load_q(q_at + row / {{ GROUP }}u * {{ Q_N }} + row % {{ GROUP }}u * {{ Q_H }}, i % {{ UNITS }}u);
{% endif %}
        }
        queries[i / {{ UNITS }}u][i % {{ UNITS }}u] = value * {{ SCALE }};
    }

{% if FRESH %}
    // The last threads do it: the first ones have rows of the query.
    for (var i = {{ WG_X - 1 }}u - thread; i < {{ 2 * UNITS }}u; i += {{ WG_X }}u) {
        let unit = i % {{ UNITS }}u;
        if (i < {{ UNITS }}u) {
            let key = rotated({{ FRESH_K_AT }} + batch * {{ FRESH_K_B }} + head * {{ FRESH_K_H }}, unit, batch);
            fresh_k[unit] = {{ stored(K_CODEC, "key") }};
        } else {
            let value = load_q({{ FRESH_V_AT }} + batch * {{ FRESH_V_B }} + head * {{ FRESH_V_H }}, unit);
            fresh_v[unit] = {{ stored(V_CODEC, "value") }};
        }
    }
{% endif %}

    let k_at = {{ K_AT }} + batch * {{ K_B }} + head * {{ K_H }};
    let v_at = {{ V_AT }} + batch * {{ V_B }} + head * {{ V_H }};
{% if FRESH %}
    let k_old = k_at + select(0u, {{ K_N }}, {{ START }} == 0u);
    let v_old = v_at + select(0u, {{ V_N }}, {{ START }} == 0u);
    let last_old = select(min(end, {{ START }}) - 1u, 0u, {{ START }} == 0u);
{% endif %}

    // Roles: scores, softmax, values.
    let lane = thread % {{ LANES }}u;
    let place = thread / {{ LANES }}u;
    let soft_row = thread / {{ SOFTMAX_LANES }}u;
    let soft_lane = thread % {{ SOFTMAX_LANES }}u;
    let soft = soft_row < {{ TILE_ROWS }}u;
    let row = first_row + soft_row;
    let position = row / {{ GROUP }}u;
    let unit = thread % {{ UNITS }}u;
    let part = thread / {{ UNITS }}u;
    let valued = part < {{ GROUPS }}u;

    var highest = {{ LOWEST }};
    var total = 0.0;
{% for r in range(TILE_ROWS) %}
    var sum{{ r }} = vec4<f32>(0.0);
{% endfor %}
    workgroupBarrier();

    for (var base = begin; base < end; base += {{ TILE }}u) {
        // Past the end the last position is read again and then given no weight.
{% for i in range(PASSES) %}
        let k{{ i }} = {{ K_FROM }} + min(base + place + {{ i * PER_PASS }}u, {{ LAST }}) * {{ K_N }};
{% for q in range(QUADS) %}
        var dots{{ i }}_{{ q }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
{% if SHARE > UNROLL %}
        for (var first = lane; first < {{ UNITS }}u; first += {{ LANES * UNROLL }}u) {
{% else %}
        {
            let first = lane;
{% endif %}
{% for u in range([SHARE, UNROLL] | min) %}
{# The last round over the units may be a short one. #}
{% set whole = UNITS % (LANES * ([SHARE, UNROLL] | min)) == 0 %}
            {{ "if (first < %du) " % (UNITS - u * LANES) if not whole }}{
{% for i in range(PASSES) %}
                let key{{ i }} = load_k(k{{ i }}, first + {{ u * LANES }}u);
{% endfor %}
{% for r in range(TILE_ROWS) %}
                let q{{ r }} = queries[{{ r }}][first + {{ u * LANES }}u];
{% for i in range(PASSES) %}
                dots{{ i }}_{{ r // 4 }}.{{ "xyzw"[r % 4] }} += dot(q{{ r }}, key{{ i }});
{% endfor %}
{% endfor %}
            }
{% endfor %}
        }
{% if FRESH %}
{% for i in range(PASSES) %}
        if (base + place + {{ i * PER_PASS }}u == {{ START }}) {
{% for q in range(QUADS) %}
            dots{{ i }}_{{ q }} = vec4<f32>(0.0);
{% endfor %}
            for (var u = lane; u < {{ UNITS }}u; u += {{ LANES }}u) {
{% for r in range(TILE_ROWS) %}
                dots{{ i }}_{{ r // 4 }}.{{ "xyzw"[r % 4] }} += dot(queries[{{ r }}][u], fresh_k[u]);
{% endfor %}
            }
        }
{% endfor %}
{% endif %}
{% if STEPS <= UNROLL_VALUES %}
        // V is on its way while the softmax waits at its barriers.
{% for i in range(STEPS) %}
        {{ "var" if FRESH else "let" }} value{{ i }} = load_v({{ V_FROM }} + min(base + part + {{ i * GROUPS }}u, {{ LAST }}) * {{ V_N }}, unit);
{% if FRESH %}
        if (base + part + {{ i * GROUPS }}u >= {{ START }}) { value{{ i }} = fresh_v[unit]; }
{% endif %}
{% endfor %}
{% endif %}
{% for i in range(PASSES) %}
{% for q in range(QUADS) %}
        pool[lane * {{ LANE_STRIDE }}u + (place + {{ i * PER_PASS }}u) * {{ QUADS }}u + {{ q }}u] = dots{{ i }}_{{ q }};
{% endfor %}
{% endfor %}
        workgroupBarrier();

{% for i in range(OWN) %}
        var score{{ i }} = 0.0;
        var seen{{ i }} = false;
{% endfor %}
        if (soft) {
            var best = {{ LOWEST }};
{% for i in range(OWN) %}
            {
                let local = soft_lane + {{ i * SOFTMAX_LANES }}u;
                let key = base + local;
                let slot = local * {{ QUADS }}u + soft_row / 4u;
                score{{ i }} = {% for l in range(LANES) %}pool[{{ l * LANE_STRIDE }}u + slot][soft_row % 4u]{{ " + " if not loop.last }}{% endfor %};
                seen{{ i }} = key < end && row < {{ ROWS }}{{ " && key <= %s + position" % START if CAUSAL }};
{% if MASK %}
                if (seen{{ i }}) {
                    let masked = load_mask({{ MASK_AT }} + position * {{ MASK_ROW }} + key * {{ MASK_KEY }});
                    seen{{ i }} = masked.seen;
                    score{{ i }} += masked.bias;
                }
{% endif %}
                best = max(best, select({{ LOWEST }}, score{{ i }}, seen{{ i }}));
            }
{% endfor %}
            partial[soft_row][soft_lane] = best;
        }
        workgroupBarrier();

        if (soft) {
            let before = highest;
{% for l in range(SOFTMAX_LANES) %}
            highest = max(highest, partial[soft_row][{{ l }}]);
{% endfor %}
            let shrink = exp2(max(before - highest, -150.0));
            total *= shrink;
            if (soft_lane == 0u) { rescale[soft_row] = shrink; }
{% for i in range(OWN) %}
            let weight{{ i }} = select(0.0, exp2(clamp(score{{ i }} - highest, -150.0, 0.0)), seen{{ i }});
            weights[soft_lane + {{ i * SOFTMAX_LANES }}u][soft_row] = weight{{ i }};
            total += weight{{ i }};
{% endfor %}
        }
        workgroupBarrier();

        if (valued) {
{% for r in range(TILE_ROWS) %}
            sum{{ r }} *= rescale[{{ r }}];
{% endfor %}
{% if STEPS > UNROLL_VALUES %}
            for (var local = part; local < {{ TILE }}u; local += {{ GROUPS * UNROLL_VALUES }}u) {
{% for i in range(UNROLL_VALUES) %}
                {{ "var" if FRESH else "let" }} value{{ i }} = load_v({{ V_FROM }} + min(base + local + {{ i * GROUPS }}u, {{ LAST }}) * {{ V_N }}, unit);
{% if FRESH %}
        if (base + local + {{ i * GROUPS }}u >= {{ START }}) { value{{ i }} = fresh_v[unit]; }
{% endif %}
{% endfor %}
{% else %}
            {
                let local = part;
{% endif %}
{% for i in range([STEPS, UNROLL_VALUES] | min) %}
{% for r in range(TILE_ROWS) %}
                sum{{ r }} += weights[local + {{ i * GROUPS }}u][{{ r }}] * value{{ i }};
{% endfor %}
{% endfor %}
            }
        }
        // No barrier here: the next tile writes pool, which nobody reads any more, and its first
        // barrier stands before weights and rescale are written again.
    }

    if (soft) { partial[soft_row][soft_lane] = total; }
{% for half in MERGE %}
    if (part >= {{ half }}u && part < {{ 2 * half }}u) {
{% for r in range(TILE_ROWS) %}
        pool[((part - {{ half }}u) * {{ TILE_ROWS }}u + {{ r }}u) * {{ UNITS }}u + unit] = sum{{ r }};
{% endfor %}
    }
    workgroupBarrier();
    if (part < {{ half }}u) {
{% for r in range(TILE_ROWS) %}
        sum{{ r }} += pool[(part * {{ TILE_ROWS }}u + {{ r }}u) * {{ UNITS }}u + unit];
{% endfor %}
    }
    workgroupBarrier();
{% endfor %}

{% if FRESH %}
    workgroupBarrier();
    if (end == {{ LENGTH }} && first_row == 0u) {
        for (var i = thread; i < {{ 2 * UNITS }}u; i += {{ WG_X }}u) {
            let unit = i % {{ UNITS }}u;
            if (i < {{ UNITS }}u) {
                k[k_at + {{ START }} * {{ K_N }} + unit] = {{ quad(K_CODEC, "fresh_k[unit]") }};
            } else {
{% if Q_CODEC == V_CODEC %}
                // As it came: a NaN keeps all its bits.
                v[v_at + {{ START }} * {{ V_N }} + unit] = q[{{ FRESH_V_AT }} + batch * {{ FRESH_V_B }} + head * {{ FRESH_V_H }} + unit];
{% else %}
                v[v_at + {{ START }} * {{ V_N }} + unit] = {{ quad(V_CODEC, "fresh_v[unit]") }};
{% endif %}
            }
        }
    }
{% endif %}

    let share = ((batch * {{ HEADS }}u + head) * {{ ROWS }} + first_row) * {{ SPLITS }} + workgroup.x;
    if (part == 0u) {
{% for r in range(TILE_ROWS) %}
        if (first_row + {{ r }}u < {{ ROWS }}) {
            sums[(share + {{ r }}u * {{ SPLITS }}) * {{ UNITS }}u + unit] = sum{{ r }};
        }
{% endfor %}
    }
    if (soft && soft_lane == 0u && row < {{ ROWS }}) {
        var all = 0.0;
{% for l in range(SOFTMAX_LANES) %}
        all += partial[soft_row][{{ l }}];
{% endfor %}
        stats[share + soft_row * {{ SPLITS }}] = vec2<f32>(highest, all);
    }
}
