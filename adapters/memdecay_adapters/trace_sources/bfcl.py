"""BFCL's multi-turn reference calls replayed on their simulated back ends, and its memory conversations."""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SETS = ("base", "miss_func", "miss_param", "long_context")


def multi_turn() -> Iterator[dict[str, Any]]:
    """One trace an entry; entries whose reference calls fail to parse are left out."""
    data = _data_folder()
    for name in SETS:
        answers = {row["id"]: row["ground_truth"] for row in _rows(data / "possible_answer" / _file(name))}
        for entry in _rows(data / _file(name)):
            if (messages := _replayed(entry, answers[entry["id"]], long_context=name == "long_context")) is not None:
                yield {"id": entry["id"], "messages": messages}


def memory() -> Iterator[dict[str, Any]]:
    """Each memory scenario's conversation, with the questions whose answer stands in one of its sentences."""
    data = _data_folder()
    answers = {row["id"]: row for row in _rows(data / "possible_answer" / "BFCL_v4_memory.json")}
    for path in sorted((data / "memory_prereq_conversation").glob("memory_*.json")):
        scenario = path.stem.removeprefix("memory_")
        messages = [
            {"role": message["role"], "content": message["content"]}
            for entry in _rows(path)
            for turn in entry["question"]
            for message in turn
        ]
        probes = []
        for question in _rows(data / "BFCL_v4_memory.json"):
            if question["scenario"] != scenario:
                continue
            answer = answers[question["id"]]
            core = answer["source"].strip().strip("\"'").strip(".").strip()
            at = next((n for n, message in enumerate(messages) if core and core in message["content"]), None)
            if at is not None:
                probes.append(
                    {
                        "id": question["id"],
                        "question": question["question"][0][0]["content"],
                        "answers": answer["ground_truth"],
                        "source": core,
                        "message": at,
                    }
                )
        if probes:
            yield {"id": f"memory_{scenario}", "messages": messages, "probes": probes}


def _replayed(entry: dict[str, Any], turns: list[list[str]], *, long_context: bool) -> list[dict[str, Any]] | None:
    back_ends = _back_ends(entry, long_context)
    messages: list[dict[str, Any]] = []
    number = 0
    for question, calls in zip(entry["question"], turns, strict=False):
        messages += [{"role": m["role"], "content": m["content"]} for m in question]
        for text in calls:
            parsed = _parsed(text, back_ends)
            if parsed is None:
                return None
            method, positional, named, arguments = parsed
            number += 1
            call = {"id": f"call_{number}", "name": method.__name__, "args": arguments}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "content": _result(method, positional, named), "tool_call_id": call["id"]})
    return messages


def _back_ends(entry: dict[str, Any], long_context: bool) -> dict[str, Any]:
    """Public methods by name, bound to fresh instances in the entry's initial state."""
    mapping = importlib.import_module("bfcl_eval.constants.executable_backend_config")
    methods: dict[str, Any] = {}
    for name in entry["involved_classes"]:
        instance = getattr(importlib.import_module(mapping.CLASS_FILE_PATH_MAPPING[name]), name)()
        if name not in mapping.STATELESS_CLASSES:
            state = copy.deepcopy(entry["initial_config"].get(name, {}))
            instance._load_scenario(state, long_context=long_context)
        methods.update({m: getattr(instance, m) for m in dir(instance) if not m.startswith("_")})
    return methods


def _parsed(text: str, methods: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any], dict[str, Any]] | None:
    """A reference call: only literals as arguments, nothing is evaluated."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return None
        method = methods.get(call.func.id)
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    except (SyntaxError, ValueError):
        return None
    if not callable(method):
        return None
    names = list(method.__code__.co_varnames[1 : method.__code__.co_argcount])
    return method, positional, named, {**dict(zip(names, positional, strict=False)), **named}


def _result(method: Any, positional: list[Any], named: dict[str, Any]) -> str:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            value = method(*positional, **named)
    except Exception as error:  # a failing tool is part of an agent's life
        return f"Error during execution: {error}"
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except TypeError:
        return str(value)


def _data_folder() -> Path:
    package = importlib.import_module("bfcl_eval")
    return Path(str(package.__file__)).parent / "data"


def _file(name: str) -> str:
    return f"BFCL_v4_multi_turn_{name}.json"


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


if __name__ == "__main__":
    for trace in {"multi_turn": multi_turn, "memory": memory}[sys.argv[1]]():
        print(json.dumps(trace, ensure_ascii=False))
