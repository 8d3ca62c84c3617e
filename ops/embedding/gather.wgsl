{# Rows picked by index: out[o, l, i] = table[o, index[l], i], one 32-bit word (or four, VECTOR) of
   out a thread. Words are moved as they are, whatever they mean; with CODEC one element of 16 bits.

   INNER: i in loads. SIZE: rows of the whole table; FIRST and COUNT: the rows that are bound.
   POISON: the word written for an index that is out of range, by the first piece only. #}
{% from "halves.wgsl" import half_functions, read, write_one %}
{{ half_functions([CODEC]) }}
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let item = (workgroup.x + workgroup.y * groups.x) * {{ WG_X }}u + lane;
    if (item >= {{ TOTAL }}) { return; }
    let i = item % {{ INNER }};
    let l = item / {{ INNER }}{{ " % " ~ LENGTH if OUTER else "" }};
    let wanted = indices[{{ INDEX_AT ~ " + " if INDEX_START }}l];
{% if WRAP %}
    let row = u32(select(wanted, wanted + i32({{ SIZE }}), wanted < 0));
{% else %}
    let row = bitcast<u32>(wanted);
{% endif %}
{% if PIECE %}
    // Each piece writes what it holds{{ ", the first also what no piece holds" if FIRST_PIECE }}.
    let mine = row >= {{ FIRST }} && row - {{ FIRST }} < {{ COUNT }};
    if (!mine{{ " && row < %s" % SIZE if FIRST_PIECE }}) { return; }
    let at = row - {{ FIRST }};
{% else %}
    let mine = row < {{ SIZE }};
    let at = row;
{% endif %}
    var value = {{ TYPE }}({{ POISON }});
    if (mine) {
        let source = {{ TABLE_AT ~ " + " if TABLE_START }}{{ "item / (%s * %s) * %s + " % (INNER, LENGTH, OUTER_STRIDE) if OUTER }}at * {{ ROW_STRIDE }} + i{{ " * " ~ INNER_STRIDE if STRIDED }};
        value = {{ read("table", CODEC, false, "source") }};
    }
    {{ write_one("out", CODEC, "item", "value" if not CODEC else "value & 0xffffu") }}
}
