"""Who calls: the agent path from run metadata, stable over steps, threads and task ids."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.runnables.config import set_config_context

from memdecay_adapters.langgraph.identity import (
    CallIdentity,
    LostMetadataWarning,
    NodeWatch,
    agent_path,
    identify,
    strip_task_ids,
)

names = st.lists(st.from_regex(r"[a-z_][a-z0-9_ -]{0,10}", fullmatch=True), min_size=1, max_size=4)


@given(names, st.lists(st.uuids(), min_size=4, max_size=4))
def test_task_ids_are_stripped_whatever_they_are(path: list[str], ids: list[UUID]) -> None:
    namespace = "|".join(f"{name}:{uid}" for name, uid in zip(path, ids, strict=False))
    assert strip_task_ids(namespace) == "|".join(path)
    assert strip_task_ids(strip_task_ids(namespace)) == "|".join(path)


def test_numbered_calls_of_one_subgraph_share_a_path() -> None:
    assert strip_task_ids("a:11|1|b:22") == strip_task_ids("a:11|b:22") == "a|b"


@pytest.mark.parametrize(
    ("metadata", "agent", "expected"),
    [
        ({"langgraph_checkpoint_ns": "sup:1|model:2", "checkpoint_ns": "sup:1"}, None, "sup|model"),
        ({"checkpoint_ns": "sup:1"}, None, "sup"),
        ({"langgraph_checkpoint_ns": "sup:1|model:2", "lc_agent_name": "worker"}, None, "worker"),
        ({"langgraph_checkpoint_ns": "sup:1|model:2", "lc_agent_name": "worker"}, "mine", "mine"),
        ({"langgraph_node": "model"}, None, "default"),
        ({}, None, "default"),
    ],
)
def test_precedence(metadata: dict[str, Any], agent: str | None, expected: str) -> None:
    assert agent_path(metadata, agent) == expected


def test_thread_ids_are_text() -> None:
    assert identify({"thread_id": 7, "langgraph_node": "n"}) == CallIdentity("default", "7", True)
    assert identify({}) == CallIdentity("default", None, False)


def test_a_bare_thread_beside_a_running_node_is_warned_about_once() -> None:
    watch, caught = NodeWatch(), []

    def call(metadata: dict[str, Any]) -> None:
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            watch.note(identify(metadata))
        caught.append([r.category for r in records])

    def in_thread(metadata: dict[str, Any], run: Callable[..., object] = lambda f, *a: f(*a)) -> None:
        thread = threading.Thread(target=run, args=(call, metadata))
        thread.start()
        thread.join()

    in_thread({})  # no node runs: a plain batch call
    with watch.running():
        call({})  # the main thread: a plain call
        in_thread({"langgraph_node": "n", "langgraph_checkpoint_ns": "n:1"})
        in_thread({"thread_id": "t"})  # says who it is
        with set_config_context({"metadata": {}}) as context:
            in_thread({}, context.run)  # the context came along
        assert not any(caught)
        in_thread({})
        in_thread({})
    assert caught[-2:] == [[LostMetadataWarning], []]
