"""Zero-width marks in a parsed chat template: which message an iteration is about, and where the generation
prompt begins. They give an owner to the text that the template itself writes.

    {% for message in messages %}   ->  ...{{ mark_iteration(message, 3) }}<body>{% endfor %}{{ mark_exit(3) }}
    {% if add_generation_prompt %}  ->  ...{{ mark_generation() }}<body>
    {% if loop.first and messages[0].role != 'system' %}<the template's own system text>{% endif %}
                                    ->  ...{{ mark_preamble(7) }}<body>{{ mark_exit(7) }}

The functions are methods of the environment and find out at run time whether a value is a message.
"""

from __future__ import annotations

from itertools import count
from typing import TypeVar

from jinja2 import nodes

N = TypeVar("N", bound=nodes.Node)


def insert_marks(template: nodes.Template) -> nodes.Template:
    """Add the marks to a parsed template, in place, and return it."""
    keys = count(1)
    for parent in [template, *template.find_all(nodes.Node)]:
        for field in parent.fields:
            value = getattr(parent, field)
            if isinstance(value, list) and any(isinstance(child, nodes.For) for child in value):
                setattr(parent, field, _mark_loops(value, keys))
    for branch in template.find_all(nodes.If):
        if _mentions(branch.test, "add_generation_prompt"):
            branch.body.insert(0, _call("mark_generation", branch))
        elif _is_default_system_test(branch.test) and _writes_constants_only(branch.body):
            key = nodes.Const(next(keys))
            branch.body.insert(0, _call("mark_preamble", branch, key))
            branch.body.append(_call("mark_exit", branch, key))
    template.set_environment(template.environment)  # type: ignore[arg-type]
    return template


def _mark_loops(children: list[nodes.Node], keys: count[int]) -> list[nodes.Node]:
    marked: list[nodes.Node] = []
    for child in children:
        marked.append(child)
        if isinstance(child, nodes.For) and isinstance(child.target, nodes.Name) and _writes(child):
            key = nodes.Const(next(keys))
            body: list[nodes.Node] = [_call("mark_iteration", child, nodes.Name(child.target.name, "load"), key)]
            for statement in child.body:
                body.append(statement)
                if _takes_message_by_index(child, statement):
                    name = nodes.Name(statement.target.name, "load")  # type: ignore[attr-defined]
                    body.append(_call("mark_iteration", statement, name, key))
            child.body = body
            marked.append(_call("mark_exit", child, key))
    return marked


def _writes(loop: nodes.For) -> bool:
    """Whether a loop can write text; loops that only look ahead need no marks."""
    if any(isinstance(node, (nodes.CallBlock, nodes.FilterBlock)) for node in loop.find_all(nodes.Node)):
        return True
    written = (node for output in _within(loop, nodes.Output) for node in output.nodes)
    return any(not isinstance(node, nodes.TemplateData) or node.data.strip() for node in written)


def _takes_message_by_index(loop: nodes.For, statement: nodes.Node) -> bool:
    """``{% set message = messages[i] %}`` directly in ``{% for i in range(...) %}``."""
    return (
        isinstance(statement, nodes.Assign)
        and isinstance(statement.target, nodes.Name)
        and isinstance(statement.node, nodes.Getitem)
        and isinstance(loop.iter, nodes.Call)
    )


def _is_default_system_test(test: nodes.Node) -> bool:
    """A test of the first iteration that also looks for the system role."""
    in_first = any(
        isinstance(node.node, nodes.Name) and node.node.name == "loop" and node.attr == "first"
        for node in _within(test, nodes.Getattr)
    )
    return in_first and any(const.value == "system" for const in _within(test, nodes.Const))


def _writes_constants_only(body: list[nodes.Node]) -> bool:
    """Nothing but text and special tokens: such a branch writes the template's own words."""
    names = [node.name for statement in body for node in _within(statement, nodes.Name)]
    return all(name.endswith("_token") for name in names)


def _mentions(test: nodes.Node, name: str) -> bool:
    return any(node.name == name for node in _within(test, nodes.Name))


def _within(node: nodes.Node, kind: type[N]) -> list[N]:
    own = [node] if isinstance(node, kind) else []
    return [*own, *node.find_all(kind)]


def _call(method: str, near: nodes.Node, *arguments: nodes.Expr) -> nodes.Output:
    function = nodes.EnvironmentAttribute(method)
    call = nodes.Call(function, list(arguments), [], None, None)
    return nodes.Output([call]).set_lineno(near.lineno, override=True)  # type: ignore[return-value]
