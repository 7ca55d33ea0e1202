"""Payloads that nobody should send: valid requests with something wrong in them, or almost wrong, or nothing.

``payloads(seed)`` yields the same endless sequence for the same seed: (route, body).
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

VOCABULARY = 1000
TENANTS = ("default", "key-" + "0" * 32, "other", "../default", "key-mine\x00")

HUGE_TEXT = "x" * 70_000
SURROGATE = "\ud800"
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, -(2**31), 2**63, 2**64, -(2**63) - 1, 10**30, 0.0, -0.5, 1e308, float("nan"),
    float("inf"), float("-inf"), "", "a", "0", "-1", "NaN", HUGE_TEXT, SURROGATE, "\x00", "é🙂\u202e", [], [[]], [0],
    [-1], [None], ["a"], {}, {"a": {}}, {"memdecay": {}}, {"v": 2}, [[0, 5, "user"]], [[5, 0, "user", 0]],
    [[0, 2**40, "user"]],
)  # fmt: skip


SAMPLING: dict[str, tuple[Any, ...]] = {
    "structural_tag": (
        "", "x", "{}", "[]", "null", '{"type": "structural_tag"}',
        '{"type": "structural_tag", "format": {"type": "nope"}}',
        '{"type": "structural_tag", "format": {"type": "any_text"}}', "[" * 5000, "x" * (2**18 + 1),
        {"type": "any_text"},
    ),
    "logit_bias": (
        {}, {"5": 1.0}, {"5": 1e9}, {"-1": 0.0}, {"999": 1.0}, {"1000": 1.0}, {"9" * 400: 1.0}, {"\u0665": 1.0},
        {"a": 1.0}, {"5": "1"}, {"5": None}, [[5, 1.0]], {str(n): 0.5 for n in range(2000)},
    ),
    "stop": ([], ["a"], [""], "a", ["a", 5], ["x" * 5000], ["a"] * 65, [["a"]], ["\x00"]),
    "bad_words": ([], ["a"], [""], " ", [" "], ["x" * 5000], ["a"] * 65, [None], [{"a": 1}]),
    "seed": (0, -1, 2**63 - 1, -(2**63), 2**63, 1.5, "7", True, [7]),
    "structured_outputs": ({}, {"regex": "((a{0,300}){0,300}){0,300}"}, {"json": "{"}, {"grammar": "root ::= root"}, 5),
}  # fmt: skip
"""Values of sampling fields, good and bad, and of one that the route does not take."""


def nested(depth: int) -> Any:
    """Lists and objects inside each other."""
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def hints(random_: random.Random, n_tokens: int) -> dict[str, Any]:
    """Well-formed hints for a prompt of so many tokens."""
    cut = random_.randrange(1, n_tokens)
    message: dict[str, Any] = {
        "session": random_.choice(("", "t1", "t1/branch", "a%2Fb")),
        "agent": random_.choice(("", "planner", "supervisor|worker")),
        "turn": random_.randrange(5),
        "spans": [
            [0, cut, "system", 0],
            [cut, n_tokens, random_.choice(("user", "tool_out", "plan")), random_.choice((0, 2))],
        ],
    }
    if random_.random() < 0.5:
        message["budget_tokens"] = random_.choice((16, 200, 4000, 10**6))
    if random_.random() < 0.3:
        message["pins"] = random_.choice((["plan"], ["user"], ["nowhere"], []))
    return message


def valid(random_: random.Random, rich: bool = False) -> tuple[str, dict[str, Any]]:
    """A request that one of the routes takes; a rich one may hold one more sampling field, which may be bad."""
    n_tokens = random_.randrange(2, 60)
    ids = [random_.randrange(VOCABULARY) for _ in range(n_tokens)]
    sent = hints(random_, n_tokens)
    route = random_.choice(("/v1/memdecay/generate", "/v1/chat/completions", "/v1/completions"))
    if route == "/v1/memdecay/generate":
        sampling: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0}
        if rich and random_.random() < 0.5:
            name = random_.choice(sorted(SAMPLING))
            sampling[name] = random_.choice(SAMPLING[name])
        return route, {"prompt_token_ids": ids, "sampling": sampling, "hints": sent}
    stream = random_.random() < 0.5
    if route == "/v1/completions":
        return route, {"prompt": ids, "max_tokens": 4, "stream": stream, "kv_transfer_params": {"memdecay": sent}}
    transfer: dict[str, Any] = {"memdecay": sent, "prompt_token_ids": ids}
    if random_.random() < 0.3:
        del transfer["prompt_token_ids"], sent["spans"]
    messages = [{"role": "user", "content": "hi"}]
    return route, {"messages": messages, "max_tokens": 4, "stream": stream, "kv_transfer_params": transfer}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything inside."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield from places(child, (*path, key))


def at(body: Any, path: tuple[Any, ...]) -> Any:
    """What a path leads to."""
    return reduce(lambda value, key: value[key], path, body)


def changed(body: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> None:
    """Apply a change to the container at the end of a path."""
    change(at(body, path[:-1]), path[-1])


def mutate(random_: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """Something wrong in one place; our own parameters are hit most."""
    body = copy.deepcopy(body)
    everything = [path for path in places(body) if path]
    ours = [path for path in everything if {"memdecay", "hints", "sampling", "kv_transfer_params"} & set(path)]
    path = random_.choice(ours if ours and random_.random() < 0.8 else everything)
    kind = random_.randrange(8)
    if kind <= 3:
        value = random_.choice(VALUES)
        changed(body, path, lambda holder, key: holder.__setitem__(key, value))
    elif kind == 4:
        changed(body, path, lambda holder, key: holder.__delitem__(key))
    elif kind == 5:
        value = nested(random_.choice((3, 63, 200)))
        changed(body, path, lambda holder, key: holder.__setitem__(key, value))
    elif kind == 6:
        _name_a_tenant(random_, body)
    else:
        name = random_.choice(("tenant", "v", "base", "budget", "n", "__class__", "x" * 3000))
        holders = [found for found in map(partial(at, body), places(body)) if isinstance(found, dict)]
        random_.choice(holders)[name] = random_.choice(VALUES)
    return body


def _name_a_tenant(random_: random.Random, body: dict[str, Any]) -> None:
    transfer = body.get("kv_transfer_params")
    for holder in (body.get("hints"), transfer.get("memdecay") if isinstance(transfer, dict) else None):
        if isinstance(holder, dict):
            holder["tenant"] = random_.choice(TENANTS)


def written(random_: random.Random, body: Any) -> bytes:
    """As JSON, mostly."""
    text = json.dumps(body)  # NaN, infinities and lone surrogates as Python writes them
    kind = random_.randrange(40)
    if kind == 0:
        return text.encode()[: random_.randrange(len(text))]
    if kind == 1:
        noise = bytearray(text.encode())
        for _ in range(4):
            noise[random_.randrange(len(noise))] = random_.randrange(256)
        return bytes(noise)
    if kind == 2:
        return random_.randbytes(random_.randrange(200))
    if kind == 3:
        return (text[:-1] + ',"kv_transfer_params":{"memdecay":{"tenant":"other"}}}').encode()
    if kind == 4:
        return b"[" * 100_000
    if kind == 5:
        return b'{"prompt_token_ids":[' + b"9" * 5000 + b"]}"
    return text.encode()


def payloads(seed: int, rich: bool = False) -> Iterator[tuple[str, bytes]]:
    """An endless sequence of (route, body); see `valid`."""
    random_ = random.Random(seed)
    while True:
        route, body = valid(random_, rich)
        for _ in range(random_.choice((0, 1, 1, 1, 2, 3))):
            body = mutate(random_, body)
        yield route, written(random_, body)
