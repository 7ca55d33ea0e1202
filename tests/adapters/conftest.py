"""The engine without a model, and the length of a text in tokens, as fixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.fake_engine import FakeEngine


@pytest.fixture
def fake(tokenizer: Any) -> FakeEngine:
    return FakeEngine(tokenizer)


@pytest.fixture(scope="session")
def count_tokens(tokenizer: Any) -> Callable[[str], int]:
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
