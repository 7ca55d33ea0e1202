"""MemDecayEngine: vLLM embedded in the caller's process, with region-aware eviction."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from memdecay_adapters.engine.determinism import check_deterministic_sampling, deterministic_arguments
from memdecay_adapters.engine.engine_accounts import Accounts, weak_snapshot
from memdecay_adapters.engine.engine_explain import Explaining
from memdecay_adapters.engine.engine_repair import Repairing, new_repairs, while_idle
from memdecay_adapters.engine.engine_sessions import DEFAULT_TENANT, Sessions
from memdecay_adapters.engine.looking import Looking
from memdecay_adapters.engine.page_size import choose_page_size
from memdecay_adapters.engine.results import GenerationResult
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.engine.stream import RequestStream
from memdecay_adapters.engine.tier.heads import with_heads
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.engine.validation import PoolShape, check_request, plain_hints
from memdecay_adapters.engine.versions import require_supported_vllm
from memdecay_adapters.models import DEFAULT_MODEL_NAME, resolve_model
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, EngineError
from memdecay_agents.hints import RequestHints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    from memdecay_adapters.engine.engine_thread import EngineThread
    from memdecay_adapters.engine.inprocess import EngineInternals

T = TypeVar("T")


class MemDecayEngine(Accounts, Sessions, Repairing, Looking, Explaining):
    """A vLLM engine in this process that evicts pages of running requests by region.

    One thread owns vLLM; any thread and any event loop may submit, and concurrent requests are batched
    continuously. One engine at a time per process: vLLM keeps process-wide state.

    Args:
        model: a Hugging Face id, a local folder, or None for the default small model.
        config: regions, policy, budgets, page size.
        engine_args: any of vLLM's engine arguments by name (``dtype``, ``max_model_len``,
            ``kv_cache_memory_bytes``, ...).
        keep_sessions: keep a session's pages between its turns, so that a turn computes only its new tokens; None:
            yes, unless ``deterministic``.
        session_idle_seconds: give up a session that is idle for longer; None: never for that reason.
        admission: what happens to a request whose guaranteed pages do not fit beside those of the running ones:
            it waits its turn, or it is refused at once with a BudgetError that says why.
        deterministic: the same requests give the same tokens and the same evictions, alone or with others; see
            `memdecay_adapters.engine.determinism` for what that takes. Requests are computed one after another.
        check_integrity: check the pool and every block-table row at each step.
        allow_untested_gpu: start on CUDA, where this code was never run; without it CUDA is refused.
        host_tier: keep evicted pages in host memory and bring them back; None: what is evicted is gone.

    Raises:
        UnsupportedError: a vLLM version, model, backend or option that eviction would silently break.
        ModelError: the model is missing or corrupt.
        ConfigError: arguments that do not fit together.
        EngineError: another engine is open in this process.
    """

    _open: ClassVar[weakref.ref[MemDecayEngine] | None] = None
    _open_thread: ClassVar[weakref.ref[EngineThread] | None] = None
    _open_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        model: str | None = None,
        *,
        config: MemDecayConfig | None = None,
        engine_args: Mapping[str, Any] | None = None,
        keep_sessions: bool | None = None,
        session_idle_seconds: float | None = 900.0,
        admission: Literal["wait", "refuse"] = "wait",
        deterministic: bool = False,
        check_integrity: bool = False,
        allow_untested_gpu: bool = False,
        host_tier: HostTier | None = None,
    ) -> None:
        self.vllm_version = require_supported_vllm()
        self._pid = os.getpid()
        self._ids = itertools.count()
        self._closed = False
        self._admission = admission
        self.deterministic = deterministic
        """Whether a request's result depends on that request alone."""
        with MemDecayEngine._open_lock:
            other = MemDecayEngine._open() if MemDecayEngine._open is not None else None
            if other is not None and not other._closed and other._pid == self._pid:
                raise EngineError(
                    where="MemDecayEngine",
                    rule="another engine is open in this process, and vLLM keeps process-wide state",
                    remedy="Share that engine (ChatMemDecay(engine=...)), or close() it first.",
                )
            thread = MemDecayEngine._open_thread() if MemDecayEngine._open_thread is not None else None
            if thread is not None and thread.pid == self._pid:
                thread.close()  # of an engine that was dropped and not closed: wait until it is down
            MemDecayEngine._open = weakref.ref(self)
        try:
            arguments = dict(engine_args or {})
            if deterministic:
                arguments = deterministic_arguments(arguments)
                if keep_sessions:
                    raise ConfigError(
                        where="MemDecayEngine(keep_sessions=True, deterministic=True)",
                        rule="what a session holds depends on what was asked before",
                        remedy="Leave one of the two out.",
                    )
            self.model_path = resolve_model(model, require_weights=arguments.get("load_format", "auto") == "auto")
            """What vLLM loads: a local folder or a Hugging Face id."""
            self.model_name = model or DEFAULT_MODEL_NAME
            """What the user calls it."""
            settings = EngineSettings(
                config=config or MemDecayConfig(),
                keep_sessions=not deterministic if keep_sessions is None else keep_sessions,
                session_idle_seconds=session_idle_seconds,
                check_integrity=check_integrity,
                allow_untested_gpu=allow_untested_gpu,
                host_tier=with_heads(host_tier, self.model_path),
            )
            self.host_tier = settings.host_tier
            """The host tier in force, with the retrieval heads that were chosen; None: there is none."""
            self._start(settings, arguments)
        except BaseException:
            self._closed = True
            raise
        weakref.finalize(self, self._thread.request_close).atexit = False  # an engine that nobody holds any more
        atexit.register(_close_at_exit, weakref.ref(self))

    def _start(self, settings: EngineSettings, engine_args: dict[str, Any]) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings are about server deployments
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        from memdecay_adapters.engine.arguments import build_engine_args
        from memdecay_adapters.engine.engine_thread import EngineThread
        from memdecay_adapters.engine.inprocess import EngineInternals
        from memdecay_adapters.engine.lifecycle import build_llm_engine, shut_down_llm_engine
        from memdecay_adapters.engine.metrics import registry_of

        config = choose_page_size(settings.config, engine_args)
        settings = settings.model_copy(update={"config": config})
        arguments = build_engine_args(self.model_path, settings, engine_args)
        self.config = config
        """The configuration in force, with the page size that was chosen."""
        self._thread = EngineThread(lambda: build_llm_engine(arguments), shut_down_llm_engine)
        MemDecayEngine._open_thread = weakref.ref(self._thread)
        try:
            self._internals = EngineInternals(self._thread.engine)
            self._metrics = registry_of(weak_snapshot(self))
            self._thread.take_summary = self._internals.controller.take_summary
            self._repairs = new_repairs(self._internals, self.host_tier)
            self._thread.on_idle = while_idle(self._internals, self._repairs, self._thread)
        except BaseException:
            self._thread.close()
            raise
        vllm_config = self._thread.engine.vllm_config
        self.max_model_len: int = vllm_config.model_config.max_model_len
        """Longest sequence in tokens."""
        self.chunk_tokens: int = vllm_config.scheduler_config.max_num_batched_tokens
        """Most tokens of one engine step: the size of a prefill chunk."""
        self.reasoning_parser = str(vllm_config.structured_outputs_config.reasoning_parser or "")
        """vLLM's reasoning parser, if it was started with one: its grammars then wait until the reasoning has ended."""
        self._pool_shape = PoolShape(
            total_pages=self._internals.pool_stats().total_pages,
            chunk_pages=-(-self.chunk_tokens // config.page_size_tokens),
        )
        self.dtype = str(vllm_config.model_config.dtype).removeprefix("torch.")

    # ---- requests

    def submit(
        self, prompt_token_ids: list[int], sampling: SamplingParams, hints: RequestHints | None = None
    ) -> RequestStream:
        """Start a request; returns at once.

        Args:
            prompt_token_ids: the whole prompt.
            sampling: vLLM's sampling parameters; copied, never written.
            hints: session, budget, pins and the region of every prompt token; None serves the request
                without regions.

        Raises:
            HintsError: ``sampling.extra_args["memdecay"]``, read where ``hints`` is None, is malformed.
            SpanError: spans that do not partition this prompt.
            RegionError: an unknown region.
            BudgetError: a budget below what must stay. With ``admission="refuse"`` also raised by the stream, when
                the guarantees of the running requests leave no room for this one's.
            EngineError: a prompt that does not fit the model, ``n > 1``, or an engine that is closed or
                was carried over a fork.
        """
        self._check_usable()
        if hints is None:
            hints = RequestHints.from_extra_args(sampling.extra_args)
        check_request(prompt_token_ids, sampling, hints, self.config, self.max_model_len, self._pool_shape)
        if self.deterministic:
            check_deterministic_sampling(sampling)
        from vllm.sampling_params import RequestOutputKind

        params = sampling.clone()
        params.output_kind = RequestOutputKind.DELTA
        if hints is not None:
            params.extra_args = {**(params.extra_args or {}), **hints.to_extra_args()}
        stream = RequestStream(f"memdecay-{next(self._ids)}", self._thread.abort)
        prompt: dict[str, Any] = {"prompt_token_ids": list(prompt_token_ids)}
        if hints is not None and hints.tenant != DEFAULT_TENANT:
            prompt["cache_salt"] = hints.tenant  # no prefix of one tenant is ever found by another
        self._thread.add(stream, prompt, params, self._admission_check(len(prompt_token_ids), params, hints))
        return stream

    def _admission_check(
        self, prompt_tokens: int, sampling: SamplingParams, hints: RequestHints | None
    ) -> Callable[[], None] | None:
        """What the engine thread asks before it takes a request, where requests are refused rather than wait."""
        if self._admission == "wait":
            return None
        asked = hints or plain_hints(prompt_tokens)
        max_tokens = sampling.max_tokens or self.max_model_len - prompt_tokens
        return lambda: self._internals.controller.check_admission(asked, prompt_tokens, max_tokens)

    def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParams, hints: RequestHints | None = None
    ) -> GenerationResult:
        """Serve one request and wait for it; see `submit`. Interrupting the wait aborts the request."""
        stream = self.submit(prompt_token_ids, sampling, hints)
        try:
            return stream.result()
        finally:
            stream.abort()  # does nothing once the request has ended

    async def agenerate(
        self, prompt_token_ids: list[int], sampling: SamplingParams, hints: RequestHints | None = None
    ) -> GenerationResult:
        """The same without blocking the event loop; cancelling it aborts the request."""
        return await self.submit(prompt_token_ids, sampling, hints).aresult()

    # ---- looking inside

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's own tokenizer (transformers)."""
        self._check_usable()
        return self._thread.engine.renderer.tokenizer

    def run_on_engine_thread(self, function: Callable[[LLMEngine, EngineInternals], T]) -> T:
        """Run a function between two steps, for tests and diagnosis."""
        self._check_usable()
        return self._thread.call(lambda: function(self._thread.engine, self._internals))

    # ---- life

    def close(self) -> None:
        """Abort what runs and free the model and the cache; idempotent."""
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            self._close_pages()
            if not self._thread.has_failed:
                with contextlib.suppress(EngineError):  # it failed, or is closing, in this very moment
                    self._thread.call(self._internals.controller.note_unbound_budgets)
            self._thread.close()

    @property
    def closed(self) -> bool:
        """Whether the engine was closed, or stopped on a fault."""
        return self._closed or self._thread.has_failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise EngineError(
                where="MemDecayEngine",
                rule="it was started in another process and carried over a fork: its thread is not here",
                remedy="Start the engine after forking.",
            )
        if self._closed:
            raise EngineError(where="MemDecayEngine", rule="it is closed", remedy="Start another one.")


def _close_at_exit(reference: weakref.ref[MemDecayEngine]) -> None:
    engine = reference()
    if engine is not None:
        engine.close()
