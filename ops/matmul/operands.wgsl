{# Macros that the matmul kernels share. Import them "with context": they ask p() for parameters.

   An operand o is what Operand.describe returns. To take another weight format is to give
   load() another branch: it is the only place that knows how an element is stored. #}

{# Address of the element at the given coordinates (WGSL expressions, one a dimension; "" for 0). #}
{% macro at(o, coordinates) -%}
{{ p(o.at) if o.at else "0u" }}
{%- for c in coordinates %}
{%- set s = o.strides[loop.index0] %}
{%- if c and s is not none %} + {{ c }}{{ " * " ~ p(s) if s }}{% endif %}
{%- endfor %}
{%- endmacro %}

{# A step of ``k`` along dimension d, to be added to an address; "" where the stride is 0. #}
{% macro step(o, d, k) -%}
{%- set s = o.strides[d] %}
{%- if s is not none %} + {{ k }}{{ " * " ~ p(s) if s }}{% endif %}
{%- endmacro %}

{# The element (f32) or the four neighbours (vec4<f32>) at an address. #}
{% macro load(o, index) -%}
{{ o.name }}[{{ index }}]
{%- endmacro %}

{# finish(): the epilogue of one sum. n counts within the columns bound; column() within all. #}
{% macro finish_function() %}
fn column(n: u32) -> u32 { return n{{ " + " ~ p("FIRST") if OFFSET_N }}; }
fn finish(acc: f32, batch: u32, m: u32, n: u32) -> f32 {
{% for o in EPILOGUE_OPERANDS %}
    let e{{ loop.index0 }} = {{ o.name }}[{{ at(o, ["batch", "m", "column(n)"]) }}];
{% endfor %}
    return {{ EPILOGUE }};
}
{% endmacro %}
