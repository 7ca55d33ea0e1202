"""Rendering of chat templates with the origin of every character (taint tracking).

origin       where characters come from: data, template, or a mark
taint        a str that carries origins through what templates do to strings
json_text    the ``tojson`` filter with origins
marks        zero-width marks in the parsed template: iterations over messages, the generation prompt
environment  transformers' Jinja environment, with origins kept alive
resolve      the glue rule: every character gets one label
fallback     the same from the finished text alone, where a template defeats the tracking
features     what a template can do, found out by rendering probes
render       all of it: text equal to transformers', and its labelled stretches
"""
