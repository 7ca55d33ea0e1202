"""LangChain's own test suites for chat models, on the real small model."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from memdecay_adapters.langchain.chat_model import ChatMemDecay


class TestUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatMemDecay


@pytest.mark.engine
class TestIntegration(ChatModelIntegrationTests):
    _engine: ClassVar[Any] = None

    @pytest.fixture(autouse=True)
    def _real_engine(self, engine_named: Any) -> None:
        type(self)._engine = engine_named("sessions")

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatMemDecay

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": self._engine}
