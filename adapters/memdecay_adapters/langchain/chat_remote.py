"""ChatMemDecayRemote: `ChatMemDecay` with the model on a server that `memdecay serve` has started.

Prompts are rendered, tokenised and tagged here, by the same code; the server is sent token ids with their regions,
the agent, the session and the budget. Answers are read here too, reasoning and tool calls included. Importing this
module imports no vLLM, and calling the model needs none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from langchain_core.utils import secret_from_env
from pydantic import Field, SecretStr, model_validator

from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_agents.errors import ConfigError, UnsupportedError
from memdecay_agents.sessions import SessionId

if TYPE_CHECKING:
    from memdecay_agents.explanation import SessionExplanation

API_KEY_VARIABLE = "MEMDECAY_API_KEY"
"""Environment variable with the API key, where none is given."""


class ChatMemDecayRemote(ChatMemDecay):
    """Chat model on a memdecay server. Fields and keywords of `ChatMemDecay` hold, but for those of a local engine.

    Example::

        llm = ChatMemDecayRemote(base_url="http://gpu-box:8000", api_key="...", default_budget=4096)
        llm.invoke("Hello")

    Raises:
        RemoteError: (at the first call) nobody answers, or the key is refused.
        UnsupportedError: (at the first call) the server does not run the plugin, or serves another model.
    """

    base_url: str = "http://127.0.0.1:8000"
    """Of the server, with or without a trailing "/v1"."""
    api_key: SecretStr | None = Field(default_factory=secret_from_env(API_KEY_VARIABLE, default=None))
    """Names the tenant, too: sessions of different keys share nothing. None: MEMDECAY_API_KEY, or an open server."""
    tokenizer: Any = Field(default=None, exclude=True, repr=False)
    """The model's tokenizer, its folder or Hugging Face id; None: the server's model name says where."""
    read_timeout_seconds: float | None = 600.0
    """Longest wait between two pieces of an answer; None: for ever."""

    @model_validator(mode="after")
    def _check_remote(self) -> Self:
        if not self.base_url.startswith(("http://", "https://")) or not urlsplit(self.base_url).hostname:
            raise ConfigError(
                where=f"ChatMemDecayRemote(base_url={self.base_url!r})",
                rule="it is no address of a server",
                remedy="Give scheme and host, such as http://127.0.0.1:8000.",
            )
        for name, is_given in (
            ("config", self.config is not None),
            ("engine_args", bool(self.engine_args)),
            ("host_tier", self.host_tier is not None),
            ("tenant", self.tenant != "default"),
        ):
            if is_given:
                remedy = (
                    "Leave it out: the tenant follows from api_key." if name == "tenant" else "Give it to the server."
                )
                raise ConfigError(where=f"ChatMemDecayRemote({name}=...)", rule="the server decides it", remedy=remedy)
        return self

    # ---- the engine

    def get_engine(self) -> Any:
        """Return the `RemoteEngine`, connected if need be.

        Raises:
            RemoteError, UnsupportedError: see the class.
        """
        if self.engine is not None:
            return self.engine
        from memdecay_adapters.remote.shared import shared_remote_engine

        engine = shared_remote_engine(*self._address())
        if self.model is not None and self.model != engine.model_name:
            raise UnsupportedError(
                where=f"ChatMemDecayRemote(model={self.model!r})",
                rule=f"the server at {engine.base_url} holds {engine.model_name!r}",
                remedy="Leave model out, or ask the server that holds it.",
            )
        return engine

    def _explain_session(self, engine: Any, session: str) -> SessionExplanation:
        named = SessionId.parse(session)
        explanation: SessionExplanation = engine.explain(named.hint_session, named.agent_path)
        return explanation

    def _running_engine(self) -> Any:
        return self.get_engine()  # sessions outlive this process: there may be some that it never saw

    def _own_config(self) -> None:
        return None  # the server's

    def _address(self) -> tuple[str, str | None, Any, float | None]:
        given = self.api_key.get_secret_value() if self.api_key is not None else None
        key = given or os.environ.get(API_KEY_VARIABLE) or None
        return self.base_url, key, self.tokenizer, self.read_timeout_seconds

    # ---- what the model is

    @property
    def model_name(self) -> str:
        """Name of the model in messages and traces; the server's, once it has been asked."""
        from memdecay_adapters.remote.shared import open_remote_engine

        engine = self.engine or open_remote_engine(*self._address())
        return str(engine.model_name) if engine is not None else self.model or "remote"

    def _unnamed_model_max_tokens(self) -> int | None:
        from memdecay_adapters.remote.shared import open_remote_engine

        engine = open_remote_engine(*self._address())
        return None if engine is None else int(engine.max_model_len)

    @property
    def lc_secrets(self) -> dict[str, str]:
        """Fields that serialisation leaves out, and where to find them again."""
        return {"api_key": API_KEY_VARIABLE}

    @property
    def _llm_type(self) -> str:
        return "memdecay-chat-remote"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """All that shapes an answer and is known here: the server's configuration is its own."""
        params: Mapping[str, Any] = super()._identifying_params
        return {**params, "base_url": self.base_url}
