{# Integers of 8 bits in storage, four to a word. Import "with context". #}

{# Element ``i`` of a buffer as a number in a float; ``dtype`` is a DType's name. #}
{% macro number(name, dtype, i) -%}
{%- if dtype == "I8" -%}
f32(bitcast<i32>({{ name }}[({{ i }}) >> 2u] << (24u - (({{ i }}) & 3u) * 8u)) >> 24u)
{%- elif dtype == "U8" -%}
f32(({{ name }}[({{ i }}) >> 2u] >> ((({{ i }}) & 3u) * 8u)) & 255u)
{%- elif dtype in ("I32", "I64") -%}
f32({{ name }}[{{ i }}])
{%- elif dtype == "F32" -%}
{{ name }}[{{ i }}]
{%- else -%}
{{ dtype }}
{%- endif -%}
{%- endmacro %}

{# The number of the block that element i lies in, see Blocks of affine.py. #}
{% macro block_of(i) -%}
{%- if not BLOCKS.many -%}
0u
{%- elif BLOCKS.groups -%}
({{ i }} / {{ p("OUTER") }}{{ " % " ~ p("OUTER_SIZE") if BLOCKS.size }}) * {{ p("GROUPS") }} + {{ i }} % {{ p("ROW") }} / {{ p("GROUP") }}
{%- else -%}
{{ i }} / {{ p("OUTER") }}{{ " % " ~ p("OUTER_SIZE") if BLOCKS.size }}
{%- endif -%}
{%- endmacro %}
