"""AgentDojo's workspace and travel tasks: the reference calls replayed in their environments, without injections."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SUITES = ("workspace", "travel")
VERSION = "v1.2.2"
_CLIENTS = ("anthropic", "cohere", "google", "langchain", "openai", "tenacity", "torch", "transformers", "vertexai")
"""Model providers' clients that the package imports and that no environment calls."""


class _Kind(type):
    """Attributes of stand-ins are stand-ins."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (_Anything,), {})


class _Anything(Exception, metaclass=_Kind):
    """Stands for a class, a function or a decorator of a client."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Takes whatever it is given."""

    def __call__(self, *given: Any, **_: Any) -> Any:
        """As a decorator: what it decorates."""
        return given[0] if given else None

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


class _Nothing(types.ModuleType):
    """Stands for a client: any name in it is a class that does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (_Anything,), {})


class _NoClients(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the clients, and gives nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A specification for a client or a part of one."""
        if fullname.split(".")[0] in _CLIENTS:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty stand-in."""
        return _Nothing(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is run."""


def tasks() -> Iterator[dict[str, Any]]:
    """One trace a task: system message, the user's wish, reference calls with their results, the answer."""
    sys.meta_path.insert(0, _NoClients())
    suites = importlib.import_module("agentdojo.task_suite.load_suites").get_suites(VERSION)
    runtime_class = importlib.import_module("agentdojo.functions_runtime").FunctionsRuntime
    as_text = importlib.import_module("agentdojo.agent_pipeline.tool_execution").tool_result_to_str
    system = _system_message()
    for suite_name in SUITES:
        suite = suites[suite_name]
        for task_name, task in suite.user_tasks.items():
            environment = task.init_environment(suite.load_and_inject_default_environment({}))
            runtime = runtime_class(suite.tools)
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": system},
                {"role": "user", "content": task.PROMPT},
            ]
            for number, call in enumerate(task.ground_truth(environment), start=1):
                result, _ = runtime.run_function(environment, call.function, dict(call.args))
                arguments = json.loads(json.dumps(dict(call.args), default=str))
                made = {"id": f"call_{number}", "name": call.function, "args": arguments}
                messages.append({"role": "assistant", "content": "", "tool_calls": [made]})
                messages.append({"role": "tool", "content": as_text(result), "tool_call_id": made["id"]})
            messages.append({"role": "assistant", "content": task.GROUND_TRUTH_OUTPUT})
            yield {"id": f"{suite_name}/{task_name}", "messages": messages}


def _system_message() -> str:
    import yaml

    package = importlib.import_module("agentdojo")
    path = Path(str(package.__file__)).parent / "data" / "system_messages.yaml"
    return str(yaml.safe_load(path.read_text(encoding="utf-8"))["default"])


if __name__ == "__main__":
    for trace in tasks():
        print(json.dumps(trace, ensure_ascii=False))
