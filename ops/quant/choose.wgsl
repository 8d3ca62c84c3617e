{# A scale and a zero point for each WIDTH neighbours (a row), from their extremes. A workgroup takes
   TAKES rows, one after another: four where zero points are bytes (PACKED), so that it owns their word.

   With lo = min(0, all), hi = max(0, all) and a range of integers LOW .. HIGH (RANGE wide):
   "affine": scale = max((hi - lo) / RANGE, EPS), zero = LOW - round(lo / scale), clamped;
   "nudged": the same scale, and a zero that makes the end exact whose error is smaller;
   "symmetric": scale = max(max(-lo, hi) / (RANGE / 2), EPS), zero = MIDDLE.
   PARTS: x holds (lo, hi) of parts, not elements. #}
{% set TAKES = 4 if PACKED else 1 %}
var<workgroup> lows: array<f32, {{ WG_X }}>;
var<workgroup> highs: array<f32, {{ WG_X }}>;
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let group = workgroup.x + workgroup.y * groups.x;
    var word = 0u;
    for (var row = group * {{ TAKES }}u; row < min((group + 1u) * {{ TAKES }}u, {{ ROWS }}); row++) {
        var low = 0.0;
        var high = 0.0;
        for (var k = lane; k < {{ WIDTH }}; k += {{ WG_X }}u) {
            let value = x[row * {{ WIDTH }} + k];
            low = min(low, value{{ ".x" if PARTS }});
            high = max(high, value{{ ".y" if PARTS }});
        }
        lows[lane] = low;
        highs[lane] = high;
        workgroupBarrier();
        for (var left = {{ WG_X // 2 }}u; left > 0u; left /= 2u) {
            if (lane < left) {
                lows[lane] = min(lows[lane], lows[lane + left]);
                highs[lane] = max(highs[lane], highs[lane + left]);
            }
            workgroupBarrier();
        }
        if (lane == 0u) {
            low = lows[0];
            high = highs[0];
{% if FORMULA == "symmetric" %}
            let scale = max(max(-low, high) / ({{ RANGE }} / 2.0), {{ EPS }});
            let zero = {{ MIDDLE }};
{% elif FORMULA == "nudged" %}
            let scale = max((high - low) / {{ RANGE }}, {{ EPS }});
            let from_low = low / scale;
            let from_high = high / scale;
            let nearer_low = {{ LOW }} + from_low + ({{ HIGH }} + from_high) > 0.0;
            let exact = select({{ HIGH }} - from_high, {{ LOW }} - from_low, nearer_low);
            let zero = round(clamp(exact, {{ LOW }}, {{ HIGH }}));
{% else %}
            let scale = max((high - low) / {{ RANGE }}, {{ EPS }});
            let zero = clamp({{ LOW }} - round(low / scale), {{ LOW }}, {{ HIGH }});
{% endif %}
            scales[row] = scale;
{% if PACKED %}
            word |= (u32(i32(zero)) & 255u) << ((row & 3u) * 8u);
            zeros[row >> 2u] = word;
{% else %}
            zeros[row] = {{ "zero" if FLOAT_ZEROS else "i32(zero)" }};
{% endif %}
        }
        workgroupBarrier();
    }
}
