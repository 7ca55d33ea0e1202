"""The example that resumes a conversation, cut off at each of its writes: nothing of it is ever lost."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from tests.graphs.recorder import Recorder

EXAMPLE = Path(__file__).parents[2] / "examples" / "resume_after_a_kill.py"


class Dying(InMemorySaver):
    """Dies at its n-th write of a checkpoint or of a task's results: that one and later ones are not kept."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("died")

    def put(self, *args: Any) -> Any:
        self._count()
        return super().put(*args)

    def put_writes(self, *args: Any, **keywords: Any) -> None:
        self._count()
        super().put_writes(*args, **keywords)


@pytest.mark.parametrize("writes", range(16))
def test_a_conversation_cut_off_at_any_write(writes: int) -> None:
    example = runpy.run_path(str(EXAMPLE))
    example["answer"].__globals__["llm"] = Recorder(calls=[])
    saver = Dying(writes)
    app = example["build"](saver)
    asked = []
    died = False
    try:
        for question in ("one", "two"):
            asked.append(question)
            example["converse"](app, question, lambda piece: None)
    except ConnectionError:
        died = True
    assert died == (writes < 10), "the scenario writes another number of times: widen the range"
    saver.left = 1000
    kept = [m.text for m in app.get_state(example["THREAD"]).values.get("messages", []) if m.type == "human"]
    said = example["converse"](app, "three", lambda piece: None)
    texts = [m.text.strip() for m in said if m.type == "human"]
    assert texts in ([*asked, "three"], [*asked[:-1], "three"])  # one that never reached the file is not answered
    assert set(kept) <= set(texts)
    assert [m.type for m in said] == ["human", "ai"] * (len(said) // 2)  # every question has its answer
