{# Macros that the matmul kernels share. Import them "with context": they ask p() for parameters.

   An operand o is what Operand.describe returns. To take another weight format is to give
   load() another branch: it is the only place that knows how an element is stored. #}
{% from "halves.wgsl" import half_functions, read, write_one %}

{# Address of the element at the given coordinates (WGSL expressions, one a dimension; "" for 0). #}
{% macro at(o, coordinates) -%}
{{ p(o.at) if o.at else "0u" }}
{%- for c in coordinates %}
{%- set s = o.strides[loop.index0] %}
{%- if c and s is not none %} + {{ "(%s) * %s" % (c, p(s)) if s else c }}{% endif %}
{%- endfor %}
{%- endmacro %}

{# A step of ``k`` along dimension d, to be added to an address; "" where the stride is 0. #}
{% macro step(o, d, k) -%}
{%- set s = o.strides[d] %}
{%- if s is not none %} + {{ "(%s) * %s" % (k, p(s)) if s else k }}{% endif %}
{%- endmacro %}

{# The element (f32) or the four neighbours (vec4<f32>) at an address. #}
{% macro load(o, index) -%}
{{ read(o.name, o.codec, o.vector, index) }}
{%- endmacro %}

{# Stores one result. #}
{% macro store(index, value) -%}
{{ write_one("out", OUT_CODEC, index, value) }}
{%- endmacro %}

{# Functions that the other macros call, and finish(): the epilogue of one sum, or (PAIRS) of two,
   for column n of the result. #}
{% macro functions() %}
{{ half_functions(CODECS) }}
{{ EPILOGUE_HELPER }}
fn finish(acc: f32, {{ "acc1: f32, " if PAIRS }}batch: u32, m: u32, n: u32) -> f32 {
{% for o in EPILOGUE_OPERANDS %}
    let e{{ loop.index0 }} = {{ load(o, at(o, ["batch", "m", "n"])) }};
{% endfor %}
    return {{ EPILOGUE }};
}
{% endmacro %}
