{# Attention of a tile of rows of one KV head over the whole context: workgroup (tile, KV head,
   batch). ROW_GROUPS x COLUMNS threads; a thread has 4 rows (the components of its vectors), KEYS
   keys of a tile for the scores and every COLUMNS-th vec4 of the head for the sums.
   Walks the context in tiles of COLUMNS * KEYS keys, up to the last that a row may see:
     scores   K and Q pass through ``stage`` SLICE vec4 of the head at a time
     softmax  running maximum and sum; weights of the tile to workgroup memory
     values   V passes through ``stage`` VALUE_KEYS keys at a time
   out: [B, S, Hq, D]. #}
{% from "halves.wgsl" import quad, write_one %}
{% include "attention/load.wgsl" %}
{% set TILE = COLUMNS * KEYS %}
{% set TILE_ROWS = ROW_GROUPS * 4 %}
{% set Q_STAGE = TILE * KEYS_STRIDE %}
{% set SUMS = (UNITS + COLUMNS - 1) // COLUMNS %}
{% set LOWEST = "vec4<f32>(-1.7e38f)" %}

var<workgroup> stage: array<vec4<f32>, {{ STAGE }}>;
// [key][rows / 4], padded.
var<workgroup> weights: array<array<vec4<f32>, {{ ROW_GROUPS + 1 }}>, {{ TILE }}>;

@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let head = workgroup.y;
    let batch = workgroup.z;
    let last_row = {{ ROWS }} - 1u;
    let first_row = workgroup.x * {{ TILE_ROWS }}u;
{% if CAUSAL %}
    let end = {{ START }} + min(first_row + {{ TILE_ROWS - 1 }}u, last_row) / {{ GROUP }}u + 1u;
{% else %}
    let end = {{ LENGTH }};
{% endif %}
    let q_at = {{ Q_AT }} + batch * {{ Q_B }} + head * {{ GROUP }}u * {{ Q_H }};
    let k_at = {{ K_AT }} + batch * {{ K_B }} + head * {{ K_H }};
    let v_at = {{ V_AT }} + batch * {{ V_B }} + head * {{ V_H }};

    let column = thread % {{ COLUMNS }}u;
    let row_group = thread / {{ COLUMNS }}u;
    // Rows past the last one repeat it and are not stored.
    let rows = vec4<u32>(first_row + row_group * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
    let positions = min(rows, vec4<u32>(last_row)) / {{ GROUP }}u;
    let visible = {{ "vec4<u32>(%s + 1u) + positions" % START if CAUSAL else "vec4<u32>(%s)" % LENGTH }};
{% for n in range(SUMS) %}
    let unit{{ n }} = min(column + {{ n * COLUMNS }}u, {{ UNITS - 1 }}u);
{% for r in range(4) %}
    var sum{{ n }}_{{ r }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
    var highest = {{ LOWEST }};
    var total = vec4<f32>(0.0);

    for (var base = 0u; base < end; base += {{ TILE }}u) {
{% for j in range(KEYS) %}
        var score{{ j }} = vec4<f32>(0.0);
{% endfor %}
        for (var slice = 0u; slice < {{ UNITS }}u; slice += {{ SLICE }}u) {
            for (var i = thread; i < {{ TILE * SLICE }}u; i += {{ WG_X }}u) {
                let unit = slice + i % {{ SLICE }}u;
                let key = min(base + i / {{ SLICE }}u, end - 1u);
                var value = vec4<f32>(0.0);
                {{ "if (unit < %du) " % UNITS if UNITS % SLICE }}{ value = load_k(k_at + key * {{ K_N }}, unit); }
                stage[i / {{ SLICE }}u * {{ KEYS_STRIDE }}u + i % {{ SLICE }}u] = value;
            }
            for (var i = thread; i < {{ TILE_ROWS * SLICE }}u; i += {{ WG_X }}u) {
                let unit = slice + i % {{ SLICE }}u;
                let row = min(first_row + i / {{ SLICE }}u, last_row);
                var value = vec4<f32>(0.0);
                {{ "if (unit < %du) " % UNITS if UNITS % SLICE }}{ value = load_q(q_at + row / {{ GROUP }}u * {{ Q_N }} + row % {{ GROUP }}u * {{ Q_H }}, unit); }
                stage[{{ Q_STAGE }}u + i] = value * {{ SCALE }};
            }
            workgroupBarrier();
{% for u in range(SLICE) %}
            {
{% for r in range(4) %}
                let q{{ r }} = stage[{{ Q_STAGE + r * SLICE + u }}u + row_group * {{ 4 * SLICE }}u];
{% endfor %}
{% for j in range(KEYS) %}
                let key{{ j }} = stage[(column + {{ j * COLUMNS }}u) * {{ KEYS_STRIDE }}u + {{ u }}u];
                score{{ j }} += vec4<f32>({% for r in range(4) %}dot(q{{ r }}, key{{ j }}){{ ", " if not loop.last }}{% endfor %});
{% endfor %}
            }
{% endfor %}
            workgroupBarrier();
        }

        var best = {{ LOWEST }};
{% for j in range(KEYS) %}
        let at{{ j }} = base + column + {{ j * COLUMNS }}u;
        var seen{{ j }} = vec4<u32>(at{{ j }}) < visible;
{% if MASK %}
        if (at{{ j }} < end) {
{% for r in range(4) %}
            let masked{{ r }} = load_mask({{ MASK_AT }} + positions[{{ r }}] * {{ MASK_ROW }} + at{{ j }} * {{ MASK_KEY }});
{% endfor %}
            seen{{ j }} = vec4<bool>({% for r in range(4) %}masked{{ r }}.seen{{ ", " if not loop.last }}{% endfor %});
            score{{ j }} += vec4<f32>({% for r in range(4) %}masked{{ r }}.bias{{ ", " if not loop.last }}{% endfor %});
        }
{% endif %}
        best = max(best, select({{ LOWEST }}, score{{ j }}, seen{{ j }}));
{% endfor %}
        stage[column * {{ ROW_GROUPS }}u + row_group] = best;
        workgroupBarrier();

        let before = highest;
{% for c in range(COLUMNS) %}
        highest = max(highest, stage[{{ c * ROW_GROUPS }}u + row_group]);
{% endfor %}
        let shrink = exp2(max(before - highest, vec4<f32>(-150.0)));
        total *= shrink;
{% for j in range(KEYS) %}
        let weight{{ j }} = select(vec4<f32>(0.0), exp2(clamp(score{{ j }} - highest, vec4<f32>(-150.0), vec4<f32>(0.0))), seen{{ j }});
        weights[column + {{ j * COLUMNS }}u][row_group] = weight{{ j }};
        total += weight{{ j }};
{% endfor %}
{% for n in range(SUMS) %}
{% for r in range(4) %}
        sum{{ n }}_{{ r }} *= shrink[{{ r }}];
{% endfor %}
{% endfor %}

        let count = min({{ TILE }}u, end - base);
        for (var part = 0u; part < count; part += {{ VALUE_KEYS }}u) {
            workgroupBarrier();
            for (var i = thread; i < {{ VALUE_KEYS * UNITS }}u; i += {{ WG_X }}u) {
                let key = min(base + part + i / {{ UNITS }}u, end - 1u);
                stage[i] = load_v(v_at + key * {{ V_N }}, i % {{ UNITS }}u);
            }
            workgroupBarrier();
            for (var key = 0u; key < {{ VALUE_KEYS }}u; key++) {
                let weight = weights[part + key][row_group];
{% for n in range(SUMS) %}
                let value{{ n }} = stage[key * {{ UNITS }}u + unit{{ n }}];
{% for r in range(4) %}
                sum{{ n }}_{{ r }} += weight[{{ r }}] * value{{ n }};
{% endfor %}
{% endfor %}
            }
        }
        workgroupBarrier();
    }

    stage[column * {{ ROW_GROUPS }}u + row_group] = total;
    workgroupBarrier();
    var all = vec4<f32>(0.0);
{% for c in range(COLUMNS) %}
    all += stage[{{ c * ROW_GROUPS }}u + row_group];
{% endfor %}
{% for r in range(4) %}
    if (rows[{{ r }}] <= last_row) {
        let at = (batch * {{ POSITIONS }} + positions[{{ r }}]) * {{ HEADS * GROUP }}u
            + head * {{ GROUP }}u + rows[{{ r }}] % {{ GROUP }}u;
        // The largest weight is 1, so a row that saw a key has a total of 1 or more.
        let factor = select(0.0, 1.0 / max(all[{{ r }}], 1.0), all[{{ r }}] > 0.5);
{% for n in range(SUMS) %}
        {{ "if (column < %du) " % (UNITS - n * COLUMNS) if (n + 1) * COLUMNS > UNITS }}{
            let result = sum{{ n }}_{{ r }} * factor;
{% if OUT_VEC %}
            out[at * {{ UNITS }}u + unit{{ n }}] = {{ quad(OUT_CODEC, "result") }};
{% else %}
{% for c in range(4) %}
            if (unit{{ n }} * 4u + {{ c }}u < {{ DIM }}u) { {{ write_one("out", OUT_CODEC, "at * %du + unit%d * 4u + %du" % (DIM, n, c), "result." ~ "xyzw"[c]) }} }
{% endfor %}
{% endif %}
        }
{% endfor %}
    }
{% endfor %}
}
