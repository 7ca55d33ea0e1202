"""Who calls: the agent path from run metadata, stable over steps, threads and task ids."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdecay_adapters.langgraph.identity import (
    CallIdentity,
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
