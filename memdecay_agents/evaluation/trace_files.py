"""Trace files: JSON Lines of messages, with questions or without.

    {"id", "messages": [{"role", "content", "tool_calls"?: [{"id", "name", "args"}], "tool_call_id"?, "region"?}],
     "probes"?: [{"id", "question", "answers", "source", "message"}]}

``source`` is the sentence that holds an answer. Where a trace has no probes, its facts are the values in tool results
that a later call quotes: each is needed when that call is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memdecay_agents.errors import TraceError
from memdecay_agents.evaluation.traces import Fact, Trace

SHORTEST_VALUE = 4
"""Characters of a quoted value: shorter ones occur by chance."""
_ROLES = ("system", "user", "assistant", "tool")


def read_traces(path: Path, *, most: int | None = None) -> list[Trace]:
    """Read a trace file.

    Args:
        path: JSON Lines.
        most: read only so many.

    Raises:
        TraceError: the file cannot be read, is empty, or a line is no trace; the line is named.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(
            where=f"trace file {path}",
            rule=f"it cannot be read ({error})",
            remedy="Give a file of traces; `memdecay traces build` makes some from public data sets.",
        ) from error
    traces: list[Trace] = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and (most is None or len(traces) < most):
            traces.append(_read_line(line, f"{path.name}, line {number}", path.stem))
    if not traces:
        raise TraceError(where=f"trace file {path}", rule="it holds no trace", remedy="Give one trace a line.")
    return traces


def _read_line(line: str, where: str, source: str) -> Trace:
    try:
        raw = json.loads(line)
    except ValueError as error:
        raise _bad(where, f"no JSON ({error})") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("messages"), list) or not raw["messages"]:
        raise _bad(where, "no object with a list of messages")
    messages = tuple(_message(message, f"{where}, message {index}") for index, message in enumerate(raw["messages"]))
    facts = _probed(raw["probes"], messages, where) if raw.get("probes") else quoted_facts(messages)
    return Trace(str(raw.get("id", where)), source, messages, tuple(facts))


def _message(raw: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(raw, dict) or raw.get("role") not in _ROLES:
        raise _bad(where, f"its role is none of {', '.join(_ROLES)}")
    if not isinstance(raw.get("content") or "", str):
        raise _bad(where, "its content is no text")
    for call in raw.get("tool_calls") or ():
        if (
            not isinstance(call, dict)
            or not isinstance(call.get("args"), dict)
            or not isinstance(call.get("name"), str)
        ):
            raise _bad(where, "a tool call without name or args")
    return raw


def _probed(probes: Any, messages: Sequence[Mapping[str, Any]], where: str) -> Iterator[Fact]:
    for probe in probes:
        try:
            at, source, name = int(probe["message"]), str(probe["source"]), str(probe["id"])
        except (KeyError, TypeError, ValueError) as error:
            raise _bad(where, f"a probe lacks {error}") from error
        if not 0 <= at < len(messages):
            raise _bad(where, f"probe {name!r} names message {at} of {len(messages)}")
        text = source.strip().strip("\"'“”").rstrip(".").strip()
        if text and text in (messages[at].get("content") or ""):
            yield Fact(name, at, text, asked_as=str(probe.get("question") or ""))


def quoted_facts(messages: Sequence[Mapping[str, Any]]) -> Iterator[Fact]:
    """Values of tool calls that stand in an earlier tool result, and that nobody said since."""
    for at, message in enumerate(messages):
        quoted = [
            value for call in message.get("tool_calls") or () for value in _values(call["args"]) if _telling(value)
        ]
        for value in dict.fromkeys(quoted):
            pattern = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")
            for earlier in range(at - 1, -1, -1):
                spoken = messages[earlier]
                if spoken["role"] != "tool":
                    said = (spoken.get("content") or "") + json.dumps(
                        [c["args"] for c in spoken.get("tool_calls") or ()]
                    )
                    if pattern.search(said):
                        break
                elif pattern.search(spoken.get("content") or ""):
                    yield Fact(f"{at}/{value[:40]}", earlier, value, needed_by_message=at)
                    break


def _values(arguments: Any) -> Iterator[str]:
    if isinstance(arguments, Mapping):
        for value in arguments.values():
            yield from _values(value)
    elif isinstance(arguments, (list, tuple)):
        for value in arguments:
            yield from _values(value)
    elif isinstance(arguments, (str, int, float)) and not isinstance(arguments, bool):
        yield str(arguments)


def _telling(value: str) -> bool:
    return len(value.strip()) >= SHORTEST_VALUE and value == value.strip()


def _bad(where: str, rule: str) -> TraceError:
    return TraceError(where=where, rule=rule, remedy="See memdecay_agents.evaluation.trace_files for the format.")
