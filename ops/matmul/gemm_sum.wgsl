{# Adds up what the workgroups of gemm.wgsl that split k between them left in ``partial``,
   [SPLITS, M, ceil(N / 4)] vec4s, and applies the epilogue. A thread has four columns of a row. #}
{% from "halves.wgsl" import quad %}
{% from "matmul/operands.wgsl" import at, load, store, functions with context %}
{{ functions() }}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(global_invocation_id) id: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {
    let index = id.x + id.y * groups.x * {{ WG_X }}u;
    let quads = ({{ N }} + 3u) / 4u;
    let count = {{ M }} * quads;
    if (index >= count) { return; }
    var sum = partial[index];
    for (var split = 1u; split < {{ SPLITS }}; split++) { sum += partial[split * count + index]; }
    let m = index / quads;
    let n = index % quads * 4u;
    let row = m * {{ OUT_N }};
{% if PAIRS %}
{% for c in (0, 2) %}
    if (n + {{ c }}u < {{ N }}) {
        let column = n / 2u + {{ c // 2 }}u;
        {{ store("row + column", "finish(sum[%d], sum[%d], 0u, m, column)" % (c, c + 1)) }}
    }
{% endfor %}
{% elif OUT_VECTOR %}
    let result = vec4<f32>(
{% for c in range(4) %}
        finish(sum[{{ c }}], 0u, m, n + {{ c }}u){{ "," if not loop.last }}
{% endfor %}
    );
    out[(row + n) / 4u] = {{ quad(OUT_CODEC, "result") }};
{% else %}
{% for c in range(4) %}
    if (n + {{ c }}u < {{ N }}) {
        {{ store("row + n + %du" % c, "finish(sum[%d], 0u, m, n + %du)" % (c, c)) }}
    }
{% endfor %}
{% endif %}
}
