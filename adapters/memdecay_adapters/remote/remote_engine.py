"""RemoteEngine: what `MemDecayEngine` is to a chat model, with the model on a server."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import httpx

from memdecay_adapters.engine.results import GenerationResult
from memdecay_adapters.engine.stream import RequestStream
from memdecay_adapters.remote.connection import Connection
from memdecay_adapters.remote.explained import read_told
from memdecay_adapters.remote.sampling import RemoteSampling
from memdecay_adapters.remote.turn import RemoteTurn
from memdecay_adapters.server.fingerprint import tokenizer_fingerprint
from memdecay_adapters.server.wire import EXPLAIN, INFO, PROTOCOL, SESSIONS
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, RemoteError, UnsupportedError
from memdecay_agents.explanation import Explanation, SessionExplanation
from memdecay_agents.hints import RequestHints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RemoteSession(NamedTuple):
    """A session that holds pages on the server; see `memdecay_adapters.engine.session_listing`."""

    session: str
    """Thread, and branch after a "/", as hints write them."""
    agent: str
    state: str
    """"running" or "idle"."""
    idle_seconds: float | None
    tokens: int
    """Computed so far, evicted ones included."""
    page_size_tokens: int
    pages_held: int
    pages_held_by_region: dict[str, int]
    budget_pages: int | None


class RemoteEngine:
    """A server that `memdecay serve` has started. Any thread and any event loop may submit.

    Args:
        base_url: of the server, with or without a trailing "/v1".
        api_key: also names the tenant: sessions of different keys share nothing.
        tokenizer: a transformers tokenizer, or the folder or Hugging Face id to load it from; None: the server's
            model name says where.
        connect_timeout_seconds: until the server accepts a connection.
        read_timeout_seconds: between two pieces of an answer; None: for ever.
        transport: in place of the network, for tests.

    Raises:
        RemoteError: nobody answers, or the key is refused.
        UnsupportedError: a server that does not run this plugin, or another version of it.
    """

    make_sampling = RemoteSampling
    """What makes sampling parameters for `submit`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        tokenizer: Any = None,
        connect_timeout_seconds: float = 10.0,
        read_timeout_seconds: float | None = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = Connection(
            base_url,
            api_key,
            connect_timeout_seconds=connect_timeout_seconds,
            read_timeout_seconds=read_timeout_seconds,
            transport=transport,
        )
        self.base_url = self._connection.base_url
        self._ids = itertools.count()
        self._turns: dict[str, Future[None]] = {}
        self._given_tokenizer = tokenizer
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._tokenizer_lock = Lock()
        try:
            self.info: dict[str, Any] = self._read_info()
            self.config = MemDecayConfig.model_validate(self.info["config"])
            """The server's configuration."""
        except BaseException:
            self._connection.close()
            raise
        self.max_model_len = int(self.info["max_model_len"])
        """Longest sequence in tokens."""
        self.model_name = str(self.info["model"])
        self.dtype = str(self.info["dtype"])

    def _read_info(self) -> dict[str, Any]:
        start = "Start the server with `memdecay serve` of the same version of memdecay-agents."
        try:
            info = self._connection.request("GET", INFO)
        except RemoteError as error:
            if "HTTP 404" in error.rule:
                raise UnsupportedError(
                    where=self.base_url, rule="this server does not run the memdecay plugin", remedy=start
                ) from None
            raise
        protocol = info.get("protocol") if isinstance(info, dict) else None
        if protocol != PROTOCOL:
            raise UnsupportedError(
                where=self.base_url,
                rule=f"it speaks version {protocol!r} of our protocol, not {PROTOCOL}",
                remedy=start,
            )
        return dict(info)

    # ---- requests

    def submit(
        self, prompt_token_ids: list[int], sampling: RemoteSampling, hints: RequestHints | None = None
    ) -> RequestStream:
        """Start a request; returns at once. What the server refuses is raised where the stream is read.

        Args:
            prompt_token_ids: the whole prompt.
            sampling: what `make_sampling` made.
            hints: session, budget, pins and the region of every prompt token. The tenant follows from the API key.
        """
        hints = (hints or RequestHints()).model_copy(update={"tenant": "default"})
        body = {
            "prompt_token_ids": list(prompt_token_ids),
            "sampling": sampling.to_json(),
            "hints": hints.to_extra_args()["memdecay"],
        }
        stream = RequestStream(f"remote-{next(self._ids)}", self._abort)
        turn = self._connection.start(RemoteTurn(self._connection, stream, body).run())
        self._turns[stream.request_id] = turn
        turn.add_done_callback(lambda _: self._turns.pop(stream.request_id, None))
        return stream

    def _abort(self, request_id: str) -> None:
        if (turn := self._turns.get(request_id)) is not None:
            turn.cancel()

    def generate(
        self, prompt_token_ids: list[int], sampling: RemoteSampling, hints: RequestHints | None = None
    ) -> GenerationResult:
        """Serve one request and wait for it; see `submit`."""
        stream = self.submit(prompt_token_ids, sampling, hints)
        try:
            return stream.result()
        finally:
            stream.abort()

    # ---- sessions

    def sessions(self) -> list[RemoteSession]:
        """This key's sessions that hold pages on the server."""
        return [RemoteSession(**one) for one in self._connection.request("GET", SESSIONS)["sessions"]]

    def explain(
        self,
        session: str,
        agent: str = "",
        *,
        message: int | None = None,
        page: int | None = None,
        token: int | None = None,
    ) -> Explanation | SessionExplanation:
        """What the server holds of this key's session, and why; see `MemDecayEngine.explain`.

        Args:
            session: thread, and branch after a "/", as `sessions` lists them.
            agent: the agent's path.
            message: place in the newest prompt; likewise ``page`` and ``token``; none of them: the whole session.
        """
        asked = {"session": session, "agent": agent, "message": message, "page": page, "token": token}
        query = {name: value for name, value in asked.items() if value is not None}
        told = self._connection.request("GET", EXPLAIN, params=query)
        return read_told(told)

    def close_sessions(self, thread_id: str | None = None, *, tenant: str | None = None) -> int:
        """Give back the pages of this key's idle sessions; see `MemDecayEngine.close_sessions`.

        Args:
            thread_id: of this thread; None: of all.
            tenant: nothing but the key's own is ever closed.
        """
        query = {"all": "true"} if thread_id is None else {"thread_id": thread_id}
        return int(self._connection.request("DELETE", SESSIONS, params=query)["closed"])

    # ---- the tokenizer

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that prompts are made with: the same as the server's, or an error.

        Raises:
            ConfigError: none can be loaded, or it gives other ids than the server's.
        """
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = self._load_tokenizer()
            return self._tokenizer

    def _load_tokenizer(self) -> PreTrainedTokenizerBase:
        from memdecay_adapters.models import resolve_model

        given, remedy = self._given_tokenizer, "Give the model's own: tokenizer=, its folder or Hugging Face id."
        source = self.model_name if given is None else given
        if not isinstance(source, str):
            tokenizer = source
        else:
            from transformers import AutoTokenizer

            try:
                tokenizer = AutoTokenizer.from_pretrained(resolve_model(source))
            except (OSError, ValueError) as error:
                raise ConfigError(
                    where=f"tokenizer {source!r}", rule=f"it cannot be loaded ({error})", remedy=remedy
                ) from error
        if tokenizer_fingerprint(tokenizer) != self.info["tokenizer"]:
            raise ConfigError(
                where=f"tokenizer {source if isinstance(source, str) else type(source).__name__!r}",
                rule=f"it gives other token ids than that of {self.model_name!r} on {self.base_url}",
                remedy=remedy,
            )
        return tokenizer

    # ---- life

    @property
    def closed(self) -> bool:
        """Whether it can be used no more."""
        return self._connection.closed

    def close(self) -> None:
        """Abort what runs and end the connection; the server and its sessions live on. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
