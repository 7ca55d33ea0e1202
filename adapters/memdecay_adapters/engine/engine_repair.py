"""Repairs by the embedded engine: of itself while nothing runs, or when it is asked."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from memdecay_adapters.engine.engine_part import EnginePart
from memdecay_adapters.engine.engine_sessions import DEFAULT_TENANT
from memdecay_adapters.engine.stream import RequestStream
from memdecay_adapters.engine.tier.repairs import RepairRequest, Repairs
from memdecay_adapters.engine.tier.settings import HostTier, Repair
from memdecay_agents.errors import EngineError

if TYPE_CHECKING:
    from vllm import SamplingParams

    from memdecay_adapters.engine.engine_thread import EngineThread
    from memdecay_adapters.engine.inprocess import EngineInternals
    from memdecay_adapters.engine.results import RetentionSummary

logger = logging.getLogger(__name__)

REPAIR_ID = "memdecay-repair"
"""Request ids of repairs that the engine begins by itself start so."""


def new_repairs(internals: EngineInternals, tier: HostTier | None) -> Repairs | None:
    """The repairs of an engine; None where there is no tier to bring anything back from."""
    if tier is None:
        return None
    pool = internals.scheduler.kv_cache_manager.block_pool
    return Repairs(internals.controller, pool.get_num_free_blocks, tier.repair or Repair(idle_seconds=None))


def while_idle(internals: EngineInternals, repairs: Repairs | None, thread: EngineThread) -> Callable[[], float | None]:
    """What the engine thread calls while nothing runs: sessions expire, and one that is due is repaired.

    It holds the thread weakly, as the thread holds it.
    """
    numbers, weak = itertools.count(), weakref.ref(thread)

    def idle() -> float | None:
        expiry = internals.controller.expire()
        request, seconds = (None, None) if repairs is None else repairs.next_due()
        engine = None if (running := weak()) is None else running.engine
        if request is not None and engine is not None:
            try:
                engine.add_request(f"{REPAIR_ID}-{next(numbers)}", _prompt(request), _sampling(request))
            except Exception as error:  # of whatever kind vLLM raises: nobody waits for it, and agents go on without
                logger.warning("a session is not repaired: %s", error)
        return min((one for one in (expiry, seconds) if one is not None), default=None)

    return idle


def _prompt(request: RepairRequest) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt_token_ids": request.token_ids}
    if request.hints.tenant != DEFAULT_TENANT:
        prompt["cache_salt"] = request.hints.tenant
    return prompt


def _sampling(request: RepairRequest) -> SamplingParams:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=request.hints.to_extra_args(),
    )


class Repairing(EnginePart):
    """Sessions whose newest tokens are computed again with everything there."""

    host_tier: HostTier | None
    _repairs: Repairs | None
    _ids: Iterator[int]

    def repair(
        self,
        thread_id: str,
        *,
        agent: str | None = None,
        last_tokens: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[RetentionSummary]:
        """Repair a thread's idle sessions now, and wait until that is done: see `Repair`.

        Tokens that were computed while others were evicted are computed again with everything there, which takes what
        a prompt of so many tokens takes. The next turn then sees what it would have seen in the full cache's newest
        tokens; what it sees of the rest is decided by budget and recall as before.

        Args:
            thread_id: whose sessions.
            agent: of this agent's path only; None: of all of the thread's.
            last_tokens: most tokens that are computed again; None: what `HostTier.repair` says, else 512.
            tenant: whose thread.

        Returns:
            What each repaired session held then; its newest ``repaired_tokens`` were computed again. Empty: there is
            nothing to repair, a turn is running, or the pool has no room for all that left.

        Raises:
            EngineError: the engine has no host tier, or is closed meanwhile, or ``last_tokens`` is less than 1.
        """
        self._check_usable()
        repairs = self._repairs
        if repairs is None or (last_tokens is not None and last_tokens < 1):
            raise EngineError(
                where="repair",
                rule="the engine has no host tier" if repairs is None else f"last_tokens is {last_tokens}",
                remedy="Start it with MemDecayEngine(host_tier=HostTier(max_bytes=...)); repair one token or more.",
            )

        def begin() -> list[RequestStream]:
            """Between two steps, so that no turn comes between a session's history and its repair."""
            streams = []
            for request in repairs.of(tenant, thread_id, agent, last_tokens):
                stream = RequestStream(f"memdecay-{next(self._ids)}", self._thread.abort)
                self._thread.begin(stream, _prompt(request), _sampling(request))
                streams.append(stream)
            return streams

        streams = self._thread.call(begin)
        try:
            summaries = [stream.result().retention for stream in streams]
        finally:
            for stream in streams:
                stream.abort()  # interrupted while waiting; else it has ended and this does nothing
        return [summary for summary in summaries if summary is not None and summary.repaired_tokens]
