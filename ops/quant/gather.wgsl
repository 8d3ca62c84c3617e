{# Rows of a packed table picked by index, dequantized: four neighbours a thread.

   QUADS: of a row, the last one may reach past K (EDGE). SIZE: rows of the whole table; PIECE: only
   COUNT of them from FIRST on are bound. NaN stands for an index that is out of range. #}
{% from "quant/weights.wgsl" import quant_functions, tile_function with context %}
{{ quant_functions() }}
{{ tile_function() }}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let item = (workgroup.x + workgroup.y * groups.x) * {{ WG_X }}u + lane;
    if (item >= {{ TOTAL }}) { return; }
    let k = item % {{ QUADS }} * 4u;
    let l = item / {{ QUADS }};
    let row = bitcast<u32>(indices[{{ INDEX_AT ~ " + " if INDEX_START }}l]);
{% if PIECE %}
    // Each piece writes what it holds{{ ", the first also what no piece holds" if FIRST_PIECE }}.
    let mine = row >= {{ FIRST }} && row - {{ FIRST }} < {{ COUNT }};
    if (!mine{{ " && row < %s" % SIZE if FIRST_PIECE }}) { return; }
    let at = row - {{ FIRST }};
{% else %}
    let mine = row < {{ SIZE }};
    let at = row;
{% endif %}
    var bits = vec4<u32>(0x7fc00000u);
    if (mine) { bits = bitcast<vec4<u32>>(weight_quad(weight_quad_fetch(at, k), at, k)); }
{% if EDGE %}
    let start = l * {{ K }} + k;
{% for c in range(4) %}
    if (k + {{ c }}u < {{ K }}) { out[start + {{ c }}u] = bits[{{ c }}]; }
{% endfor %}
{% else %}
    out[item] = bits;
{% endif %}
}
