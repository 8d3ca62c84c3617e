{# Merges the splits of one row: workgroup (row, KV head, batch). With maxima m_i and sums of
   weights l_i, the output is sum_i 2^(m_i - m) sums_i / sum_i 2^(m_i - m) l_i; zeros for a row
   that saw no key. UNITS threads a split, GROUPS splits at a time.

   sums, stats: as decode_split.wgsl leaves them; out: [B, S, Hq, D]. #}
{% from "halves.wgsl" import half_functions, quad, write_one %}
{{ half_functions([OUT_CODEC]) }}
var<workgroup> pool: array<vec4<f32>, {{ POOL }}>;
var<workgroup> maxima: array<f32, {{ MAX_SPLITS }}>;
var<workgroup> totals: array<f32, {{ MAX_SPLITS }}>;

@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let row = workgroup.x;
    let head = workgroup.y;
    let batch = workgroup.z;
    let share = ((batch * {{ HEADS }}u + head) * {{ ROWS }} + row) * {{ SPLITS }};
    if (thread < {{ SPLITS }}) {
        let stat = stats[share + thread];
        maxima[thread] = stat.x;
        totals[thread] = stat.y;
    }
    workgroupBarrier();

    var highest = maxima[0];
    for (var i = 1u; i < {{ SPLITS }}; i++) { highest = max(highest, maxima[i]); }
    let unit = thread % {{ UNITS }}u;
    let part = thread / {{ UNITS }}u;
    var sum = vec4<f32>(0.0);
    var total = 0.0;
    if (part < {{ GROUPS }}u) {
        for (var i = part; i < {{ SPLITS }}; i += {{ GROUPS }}u) {
            sum += exp2(max(maxima[i] - highest, -150.0)) * sums[(share + i) * {{ UNITS }}u + unit];
        }
    }
    for (var i = 0u; i < {{ SPLITS }}; i++) {
        total += exp2(max(maxima[i] - highest, -150.0)) * totals[i];
    }
{% for half in MERGE %}
    if (part >= {{ half }}u && part < {{ 2 * half }}u) {
        pool[(part - {{ half }}u) * {{ UNITS }}u + unit] = sum;
    }
    workgroupBarrier();
    if (part < {{ half }}u) { sum += pool[part * {{ UNITS }}u + unit]; }
    workgroupBarrier();
{% endfor %}

    if (part == 0u) {
        // The largest weight is 1, so a row that saw a key has a total of 1 or more.
        let result = select(vec4<f32>(0.0), sum / max(total, 1.0), total > 0.5);
        let at = (batch * {{ POSITIONS }} + row / {{ GROUP }}u) * {{ HEADS * GROUP }}u
            + head * {{ GROUP }}u + row % {{ GROUP }}u;
{% if OUT_VEC %}
        out[at * {{ UNITS }}u + unit] = {{ quad(OUT_CODEC, "result") }};
{% else %}
{% for c in range(4) %}
        if (unit * 4u + {{ c }}u < {{ DIM }}u) { {{ write_one("out", OUT_CODEC, "at * %du + unit * 4u + %du" % (DIM, c), "result." ~ "xyzw"[c]) }} }
{% endfor %}
{% endif %}
    }
}
