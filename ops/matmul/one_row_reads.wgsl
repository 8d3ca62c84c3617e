{# What the kernels for one row read of a, four elements at a time. Import "with context".

   UNIT_EDGE: a unit may be past the end of UNITS. K_EDGE: a unit may reach past K. #}
{% from "matmul/operands.wgsl" import at, step, load with context %}
{# vec4 number k of a, in unit number ``unit``: 0 past the end. #}
{% macro quad(k, unit) -%}
{%- set bounds = (["%s < %s" % (unit, UNITS)] if UNIT_EDGE else []) + (["%s * 4u < %s" % (k, K)] if K_EDGE else []) -%}
{%- set value = load(A, "a0" ~ step(A, 2, k)) -%}
{{ "select(vec4<f32>(), %s, %s)" % (value, bounds | join(" && ")) if bounds else value }}
{%- endmacro %}
{# The norm's weights for it. #}
{% macro norm_quad(k) -%}
{{ load(NORM_WEIGHT, at(NORM_WEIGHT, ["", "", ""]) ~ step(NORM_WEIGHT, 2, "min(%s, %s / 4u - 1u)" % (k, K) if K_EDGE else k)) }}
{%- endmacro %}
