"""The tracked environment renders what transformers' environment renders, and keeps origins on the way."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from memdecay_adapters.langchain.regions import Label
from memdecay_adapters.langchain.templates.environment import EntryDict
from memdecay_adapters.langchain.templates.origin import Origin
from memdecay_adapters.langchain.templates.render import compile_tracked
from memdecay_adapters.langchain.templates.resolve import resolve
from memdecay_adapters.langchain.templates.taint import plain, runs_of, tainted

CONTENT = "  Hello <b>World</b>, a ß {x} %s\n second line\t\n"
LABEL = Label("tool_out")
DATA = Origin(0, LABEL)


def both(source: str) -> tuple[str, str]:
    """(transformers' text, tracked text) of a template with one message."""
    message: dict[str, Any] = {"role": "user", "content": CONTENT, "args": {"k": "v<", "n": 3, "l": ["é", None, 2.5]}}
    entry = EntryDict(
        role="user",
        content=tainted(CONTENT, DATA),
        args={
            tainted("k", DATA): tainted("v<", DATA),
            tainted("n", DATA): 3,
            tainted("l", DATA): [tainted("é", DATA), None, 2.5],
        },
    )
    entry._entry = 0
    expected, _ = render_jinja_template(conversations=[[message]], chat_template=source)
    tracked = compile_tracked(source).render(messages=[entry], tools=None, documents=None, add_generation_prompt=False)
    return expected[0], tracked


KEEPING = [
    "{{ messages[0].content }}",
    "{{ messages[0]['content'] | trim }}",
    "{{ 'x' ~ messages[0].content ~ 3 }}",
    "{{ 'x' + messages[0].content.strip() + 'y' }}",
    "{{ messages[0].content.split('World')[1].lstrip() }}",
    "{{ messages[0].content | replace('World', 'there') }}",
    "{{ messages[0].content.replace('World', '') }}",
    "{{ 'text: TEXT'.replace('TEXT', messages[0].content) }}",
    "{{ 'text: TEXT' | replace('TEXT', messages[0].content) }}",
    "{{ ['a', messages[0].content] | join(', ') }}",
    "{{ ', '.join(['a', messages[0].content]) }}",
    "{{ messages | map(attribute='content') | join('-') }}",
    "{{ messages | join('-', attribute='content') }}",
    "{{ messages[0].content | upper }}",
    "{{ messages[0].content | lower | title }}",
    "{{ messages[0].content.capitalize() }}",
    "{{ messages[0].content | indent(4) }}",
    "{{ messages[0].content | indent('> ', first=true, blank=true) }}",
    "{{ messages[0].content | string | default('none') }}",
    "{{ messages[0].missing | default(messages[0].content) }}",
    "{{ messages[0].content | tojson }}",
    "{{ messages[0].args | tojson(indent=2) }}",
    "{{ messages[0].args | tojson | safe }}",
    "{{ '[%s] %s' % ('a', messages[0].content) }}",
    "{{ '[%s]' % messages[0].content }}",
    "{{ '[%s]' | format(messages[0].content) }}",
    "{{ '%d: %s' | format(3, messages[0].content) }}",
    "{{ '{}: {}'.format(1, messages[0].content) }}",
    "{{ '{a}'.format(a=messages[0].content) }}",
    "{{ '{:>60}'.format(messages[0].content) }}",
    "{{ messages[0].content.format(x=1) if false else messages[0].content[2:9] }}",
    "{% set x %}<{{ messages[0].content }}>{% endset %}{{ x | trim }}",
    "{% macro m(c) %}({{ c }}){% endmacro %}{{ m(messages[0].content) }}",
    "{% for line in messages[0].content.splitlines() %}{{ loop.index }}{{ line }}{% endfor %}",
    "{% for k, v in messages[0].args.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in messages[0].args | dictsort %}{{ k }}={{ v | tojson }};{% endfor %}",
    "{% filter upper %}{{ messages[0].content }}{% endfilter %}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}",
    "{% macro m2(t) %}{{ caller(t) }}{% endmacro %}{% call(c) m2(messages[0].content) %}-{{ c }}-{% endcall %}",
    "{% for m in messages %}{% if loop.index0 > 3 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.content %}{% endfor %}{{ ns.t }}",
    "{{ messages[0].content | reverse | reverse }}",
    "{{ messages[0].content | first }}{{ messages[0].content | last }}{{ messages[0].content[-3] }}",
    "{{ messages[0].content | truncate(12) }}",
    "{{ messages[0].content | center(80) }}",
    "{{ messages[0].content | striptags }}",
    "{{ messages[0].content * 2 }}",
]  # fmt: skip


@pytest.mark.parametrize("source", KEEPING)
def test_text_is_equal_and_origins_survive(source: str) -> None:
    expected, tracked = both(source)
    assert plain(tracked) == expected
    assert any(isinstance(origin, Origin) for length, origin in runs_of(tracked) if length)


TEXT_ONLY = [
    "{{ messages[0].content | e }}",
    "{{ messages[0].content | wordwrap(5) }}",
    "{{ messages[0].content | length }} {{ messages[0].content | wordcount }}",
    "{{ messages }}",
    "{{ messages[0].content is string }} {{ messages[0].content in 'abc' }} {{ 7 % 4 }} {{ -7 // 2 }} {{ 2 ** 3 }}",
    "{{ messages[0].nothing }}{{ messages[0].content.nothing }}{{ none }}{{ true }}{{ 1.50 }}",
    "{{ messages[0].content | urlencode }} {{ 'a%sb' % 'c' }} {{ '%(k)s' % {'k': messages[0].content} }}",
    "{{ [messages[0].content, 'a'] | sort | first }}{{ messages[0].content | list | length }}",
    "{{ ('<' ~ ('&' | e)) }}",
    "{{ '{0[content]}'.format(messages[0]) }}{{ '{k}'.format_map(messages[0].args) }}",
    "{{ messages[0].content | safe ~ '<' }}",
    "{{ strftime_now('%Y') }}",
]


@pytest.mark.parametrize("source", TEXT_ONLY)
def test_text_is_equal_whatever_a_template_does(source: str) -> None:
    expected, tracked = both(source)
    assert plain(tracked) == expected


def test_templates_stay_in_the_sandbox() -> None:
    for source in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__[1] }}", "{{ '{0.__class__.x}'.format(1) }}"):
        template = compile_tracked(source)
        with pytest.raises(jinja2.exceptions.SecurityError):
            template.render(messages=[])
    assert compile_tracked("{{ x._runs }}{{ x._entry }}").render(x=tainted("a", DATA)) == ""


def test_raise_exception_is_a_template_error() -> None:
    with pytest.raises(jinja2.exceptions.TemplateError, match="no such role"):
        compile_tracked("{{ raise_exception('no such role') }}").render()


def labels(source: str, n_messages: int = 2, **variables: Any) -> list[tuple[str, str]]:
    """(text, region) of each stretch; message i has content 'c<i>' and region r<i>, default d<i>."""
    entries = []
    for number in range(n_messages):
        entry = EntryDict(role="user", content=tainted(f"c{number}", Origin(number, Label(f"r{number}"))))
        entry._entry = number
        entries.append(entry)
    text = compile_tracked(source).render(messages=entries, **variables)
    defaults = [Label(f"d{number}") for number in range(n_messages)]
    resolved = resolve(runs_of(text), defaults, Label("system"))
    return [(plain(text)[s.start : s.end], s.label.region) for s in resolved.stretches]


def test_glue_rule_in_a_message_loop() -> None:
    found = labels("P{% for m in messages %}<{{ m.content }}+{{ m.content }}>{% endfor %}")
    assert found == [
        ("P", "system"), ("<", "d0"), ("c0+c0", "r0"), (">", "d0"), ("<", "d1"), ("c1+c1", "r1"), (">", "d1"),
    ]  # fmt: skip


def test_a_loop_that_looks_ahead_does_not_move_the_owner() -> None:
    source = (
        "{% for m in messages %}<{% for n in messages %}{{ '' if n.content else '!' }}{% endfor %}"
        "{{ m.content }}>{% endfor %}"
    )
    assert labels(source) == [("<", "d0"), ("c0", "r0"), (">", "d0"), ("<", "d1"), ("c1", "r1"), (">", "d1")]


def test_messages_taken_by_index() -> None:
    source = "{% for i in range(messages | length) %}{% set m = messages[i] %}<{{ m.content }}>{% endfor %}"
    assert labels(source) == [("<", "d0"), ("c0", "r0"), (">", "d0"), ("<", "d1"), ("c1", "r1"), (">", "d1")]


def test_without_a_loop_text_after_a_content_is_its_footer() -> None:
    assert labels("<{{ messages[0].content }}>{{ messages[1].content }}!") == [
        ("<", "system"), ("c0", "r0"), (">", "d0"), ("c1", "r1"), ("!", "d1"),
    ]  # fmt: skip


def test_the_templates_own_system_text_is_system() -> None:
    source = (
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}Be good.{% endif %}"
        "[{{ m.content }}]{% endfor %}"
    )
    assert labels(source, 1) == [("Be good.", "system"), ("[", "d0"), ("c0", "r0"), ("]", "d0")]


def test_numbers_follow_the_content_before_them() -> None:
    assert labels("{% for m in messages %}<{{ m.content }}={{ loop.index + 2 }}>{% endfor %}", 1) == [
        ("<", "d0"), ("c0=3", "r0"), (">", "d0"),
    ]  # fmt: skip
