"""The engine without a model, as a fixture."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.fake_engine import FakeEngine


@pytest.fixture
def fake(tokenizer: Any) -> FakeEngine:
    return FakeEngine(tokenizer)
