{# Rotates heads of q and k by cos and sin (with a norm over the head first: Q_NORM, K_NORM) and
   writes q to q_out, k and v to their caches. LANES threads take one head of one position, PAIRS
   pairs each; a row is (batch, position, head), heads being those of q, then of k, then of v.

   INTERLEAVED: pairs are neighbours, else DIM / 2 apart; PAIRS pairs of a thread are neighbours in
   either case, so that two of them fill whole words of 16-bit elements. Q, K, ...: name, prefix (of
   the parameters of its address) and codec (see halves.wgsl) of a buffer. V_BITS: v and its cache
   have 16 bits of one kind, which are moved as they are: a NaN keeps all of them. #}
{% from "halves.wgsl" import half_functions, read, word %}
{% set HALF = DIM // 2 %}
{% set COUNT = 2 * PAIRS %}
{# Element j of the thread's: its place in the head. #}
{% macro place(j) -%}
{%- if INTERLEAVED -%}
unit * {{ COUNT }}u + {{ j }}u
{%- else -%}
unit * {{ PAIRS }}u + {{ j % PAIRS + (HALF if j >= PAIRS else 0) }}u
{%- endif -%}
{%- endmacro %}
{# Number of the thread's element that is first (0) or second (1) of pair i. #}
{% macro member(i, second) -%}
{{ 2 * i + second if INTERLEAVED else i + second * PAIRS }}
{%- endmacro %}
{% macro base(t, head) -%}
{{ p(t.prefix ~ "_AT") }} + batch * {{ p(t.prefix ~ "_B_STEP") }} + position * {{ p(t.prefix ~ "_S_STEP") }} + ({{ head }}) * {{ p(t.prefix ~ "_H_STEP") }}
{%- endmacro %}
{% macro element(t, start, place) -%}
{{ read(t.name, t.codec, false, "%s + (%s) * %s" % (start, place, p(t.prefix ~ "_D_STEP"))) }}
{%- endmacro %}
{% macro fetch(t, head) %}
        let at = {{ base(t, head) }};
{% for j in range(COUNT) %}
        e{{ j }} = {{ element(t, "at", place(j)) }};
{% endfor %}
{% endmacro %}
{% macro store(t, head) %}
        let at = {{ base(t, head) }};
{% if t.codec %}
{% for j in range(0, COUNT, 2) %}
        {{ t.name }}[(at + {{ place(j) }}) >> 1u] = {{ word(t.codec, "e%d" % j, "e%d" % (j + 1)) }};
{% endfor %}
{% else %}
{% for j in range(COUNT) %}
        {{ t.name }}[at + {{ place(j) }}] = e{{ j }};
{% endfor %}
{% endif %}
{% endmacro %}
{% macro move_bits(source, t, head) %}
        let source_at = {{ base(source, head) }};
        let at = {{ base(t, head) }};
{% for j in range(0, COUNT, 2) %}
        {{ t.name }}[(at + {{ place(j) }}) >> 1u] = {{ word("bits", raw(source, place(j)), raw(source, place(j + 1))) }};
{% endfor %}
{% endmacro %}
{% macro raw(t, place) -%}
{{ read(t.name, "bits", false, "source_at + (%s) * %s" % (place, p(t.prefix ~ "_D_STEP"))) }}
{%- endmacro %}
{% macro normalise(weight, eps) %}
        let at = {{ p(weight.prefix ~ "_AT") }};
        let scale = inverseSqrt(total / {{ DIM }}.0 + {{ eps }});
{% for j in range(COUNT) %}
        e{{ j }} *= scale * {{ element(weight, "at", place(j)) }};
{% endfor %}
{% endmacro %}
{{ half_functions(CODECS) }}
{% set NORM = Q_NORM or K_NORM %}
{% if NORM %}
var<workgroup> partial: array<f32, {{ WG_X }}>;
{% endif %}

@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let group = workgroup.x + workgroup.y * groups.x;
    let given = group * {{ WG_X // LANES }}u + lane / {{ LANES }}u;
    let inside = given < {{ TOTAL }}{{ " && lane %% %du < %du" % (LANES, UNITS) if UNITS != LANES }};
    // Threads past the end read what the last one reads, and store nothing.
    let row = min(given, {{ TOTAL }} - 1u);
    let unit = {{ "min(lane %% %du, %du)" % (LANES, UNITS - 1) if UNITS != LANES else "lane %% %du" % LANES }};
    let head = row % {{ HEADS + 2 * KV_HEADS }}u;
    let position = row / {{ HEADS + 2 * KV_HEADS }}u % {{ POSITIONS }};
    let batch = row / {{ HEADS + 2 * KV_HEADS }}u / {{ POSITIONS }};
    let is_q = head < {{ HEADS }}u;
    let is_k = !is_q && head < {{ HEADS + KV_HEADS }}u;
{% for j in range(COUNT) %}
    var e{{ j }}: f32;
{% endfor %}
    if (is_q) {
{{ fetch(Q, "head") }}
    } else if (is_k) {
{{ fetch(K, "head - %du" % HEADS) }}
    }{% if not V_BITS %} else {
{{ fetch(V, "head - %du" % (HEADS + KV_HEADS)) }}
    }{% endif %}

{% if NORM %}
    partial[lane] = select(0.0, {% for j in range(COUNT) %}e{{ j }} * e{{ j }}{{ " + " if not loop.last }}{% endfor %}, inside);
    workgroupBarrier();
{% set ns = namespace(half=LANES // 2) %}
{% for _ in range(LANES.bit_length() - 1) %}
    if (lane % {{ LANES }}u < {{ ns.half }}u) { partial[lane] += partial[lane + {{ ns.half }}u]; }
    workgroupBarrier();
{% set ns.half = ns.half // 2 %}
{% endfor %}
    let total = partial[lane / {{ LANES }}u * {{ LANES }}u];
{% if Q_NORM %}
    if (is_q) {
{{ normalise(Q_NORM_WEIGHT, Q_NORM_EPS) }}
    }
{% endif %}
{% if K_NORM %}
    if (is_k) {
{{ normalise(K_NORM_WEIGHT, K_NORM_EPS) }}
    }
{% endif %}
{% endif %}
    if (is_q || is_k) {
        let cos_at = {{ base(COS, "0u") }};
        let sin_at = {{ base(SIN, "0u") }};
{% for i in range(PAIRS) %}
        {
            let a = e{{ member(i, 0) }};
            let b = e{{ member(i, 1) }};
{% for s in range(2) %}
{% set place = "unit * %du + %du" % (PAIRS, i + (0 if INTERLEAVED else s * HALF)) %}
            let cos{{ s }} = {{ element(COS, "cos_at", place) }};
            let sin{{ s }} = {{ element(SIN, "sin_at", place) }};
{% endfor %}
            e{{ member(i, 0) }} = a * cos0 - b * sin0;
            e{{ member(i, 1) }} = b * cos1 + a * sin1;
        }
{% endfor %}
    }
    if (!inside) { return; }
    if (is_q) {
{{ store(Q_OUT, "head") }}
    } else if (is_k) {
{{ store(K_CACHE, "head - %du" % HEADS) }}
    } else {
{{ move_bits(V, V_CACHE, "head - %du" % (HEADS + KV_HEADS)) if V_BITS else store(V_CACHE, "head - %du" % (HEADS + KV_HEADS)) }}
    }
}
