"""A fake server with one API key, and a client of it; files with a server of their own define theirs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from memdecay_adapters.remote import RemoteEngine
from memdecay_adapters.server.fingerprint import tokenizer_fingerprint
from memdecay_agents import MemDecayConfig
from tests.server.fake_server import KEY, FakeBackend, fake_app, serving
from tests.server.limits_for_tests import LIMITS


@pytest.fixture(scope="module")
def backend(tokenizer: Any) -> FakeBackend:
    limits = replace(LIMITS, vocabulary=len(tokenizer), config=MemDecayConfig(page_size_tokens=16))
    return FakeBackend(limits=limits, fingerprint=tokenizer_fingerprint(tokenizer))


@pytest.fixture(scope="module")
def url(backend: FakeBackend) -> Iterator[str]:
    with serving(fake_app(backend, [KEY])) as address:
        yield address


@pytest.fixture
def engine(url: str, backend: FakeBackend, tokenizer: Any) -> Iterator[RemoteEngine]:
    backend.pieces, backend.fault, backend.fault_late, backend.hang = ("Hello", " there"), None, False, False
    backend.aborted.clear()
    with RemoteEngine(url, api_key=KEY, tokenizer=tokenizer, read_timeout_seconds=20) as engine:
        yield engine
