"""Real eviction: traces are streamed through the embedded engine under a budget, then the questions are asked.

What an agent wrote is decoded token by token (forced), everything else is prefilled; each stretch is a turn of one
session. All variants of a trace run at once, in steps of the same size. A question continues the session with room
for its own tokens, so that nothing more is evicted, and is forgotten again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memdecay_adapters.evaluation.forced_tokens import FORCED_KEY, PATH
from memdecay_adapters.evaluation.questions import token_question
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import BudgetError, EngineError
from memdecay_agents.evaluation.outcomes import FactOutcome, at_risk, survived
from memdecay_agents.evaluation.replay import CHUNK_TOKENS, MOST_SESSIONS, budget_tokens, session_id, turn_hints
from memdecay_agents.evaluation.session_policies import SessionPolicies
from memdecay_agents.evaluation.traces import TokenFact, TokenTrace
from memdecay_agents.evaluation.variants import Variant
from memdecay_agents.hints import RequestHints
from memdecay_agents.ledger_entry import LedgerEntry
from memdecay_agents.policies import register_policy
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span

if TYPE_CHECKING:
    from memdecay_adapters.engine import HostTier, MemDecayEngine, RequestStream
    from memdecay_adapters.engine.results import GenerationResult

QUESTION_ROOM_TOKENS = 128
"""What a question may hold beyond the budget, so that asking evicts nothing."""
_QUESTION_TOKENS = 10
"""What a question counts as in the progress."""
_numbers = itertools.count()


def tokens_of(trace: TokenTrace, sessions: int) -> int:
    """What the verification of a trace adds up to in the progress: tokens of all sessions, questions among them."""
    return sessions * (trace.n_tokens + _QUESTION_TOKENS * sum(fact.question is not None for fact in trace.facts))


@dataclass(frozen=True)
class Run:
    """One trace under one variant and budget."""

    trace: TokenTrace
    variant: Variant
    budget: float | None
    id: SessionId

    @property
    def tokens(self) -> int | None:
        """The budget in tokens; None: no limit."""
        return budget_tokens(self.trace, self.budget)


_Request = tuple[Run, list[int], Any, RequestHints]
"""What is streamed, the prompt's ids, vLLM's sampling parameters, hints."""


class EngineVerifier:
    """An engine for all variants; close it when done (vLLM allows one engine a process).

    Args:
        model: a Hugging Face id, a folder, or None for the default model.
        longest_tokens: of the traces.
        engine_args: laid over those chosen here.
        host_tier: for evicted pages; None: they are gone.
    """

    def __init__(
        self,
        model: str | None,
        longest_tokens: int,
        engine_args: dict[str, Any] | None = None,
        *,
        host_tier: HostTier | None = None,
    ) -> None:
        from memdecay_adapters.engine import MemDecayEngine

        name = f"evaluation-{next(_numbers)}"
        self._policies: list[SessionPolicies] = []

        def make(given: MemDecayConfig) -> SessionPolicies:
            self._policies.append(SessionPolicies(given))
            return self._policies[-1]

        register_policy(name, make)
        self.engine: MemDecayEngine = MemDecayEngine(
            model,
            config=Variant("memdecay", pinned=True).config().model_copy(update={"policy": name}),
            engine_args={
                "dtype": "float32",
                "max_num_batched_tokens": MOST_SESSIONS * CHUNK_TOKENS,
                "max_num_seqs": MOST_SESSIONS,
                "long_prefill_token_threshold": CHUNK_TOKENS,
                "max_model_len": longest_tokens + 2 * QUESTION_ROOM_TOKENS,
                "kv_cache_memory_bytes": 2**31,
                "enable_prefix_caching": False,
                "logits_processors": [PATH],
                "max_logprobs": 64,
                **(engine_args or {}),
            },
            keep_sessions=True,
            host_tier=host_tier,
        )

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()

    def verify(
        self,
        trace: TokenTrace,
        variants: Sequence[tuple[Variant, float | None]],
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> list[FactOutcome]:
        """Outcomes of one trace; a budget that cannot hold what must stay is left out.

        Args:
            trace: what to stream.
            variants: with their budgets, parts of the trace's tokens; None: no limit.
            progress: told of tokens that were streamed, and of questions; see ``tokens_of``.
        """
        made: list[FactOutcome] = []
        for batch in self.prepared(trace, variants):
            tick = functools.partial(_in_all, progress, len(batch))
            streamed = self.stream(batch, tick)
            ledger = self.engine.ledger()
            answers = self._ask(streamed, tick)
            for run in streamed:
                evictions = ledger.entries(run.id.key())
                made += [
                    _outcome(run, fact, evictions, answers.get((run.id, fact.id)))
                    for fact in at_risk(trace.facts, run.tokens)
                ]
            self.engine.close_sessions()
        return made

    def prepared(self, trace: TokenTrace, variants: Sequence[tuple[Variant, float | None]]) -> Iterator[list[Run]]:
        """Runs of a trace, as many at once as the pool holds, their policies in place."""
        runs = [Run(trace, variant, budget, session_id(trace, variant, budget)) for variant, budget in variants]
        for batch in self._batches(runs):
            for run in batch:
                policy = run.variant.make_policy(run.variant.config())
                for mux in self._policies:
                    mux.by_session[run.id.key()] = policy
            yield batch

    # ---- one batch

    def _batches(self, runs: Sequence[Run]) -> list[list[Run]]:
        """As many sessions at once as the pool holds, budgets and what a question may need beside them."""
        page, chunk_pages = self.engine.config.page_size_tokens, CHUNK_TOKENS // self.engine.config.page_size_tokens
        room = self.engine.pool_stats().total_pages - MOST_SESSIONS * chunk_pages - 64
        batches: list[list[Run]] = []
        free = 0
        for run in runs:
            tokens = min(run.tokens or run.trace.n_tokens, run.trace.n_tokens) + QUESTION_ROOM_TOKENS
            need = -(-tokens // page) + chunk_pages + 2
            if need > room:
                raise EngineError(
                    where=f"verification of trace {run.trace.id!r}",
                    rule=f"the pool has {room} pages for sessions, and {run.variant.label} needs {need}",
                    remedy="Raise kv_cache_memory_bytes.",
                )
            if not batches or free < need or len(batches[-1]) == MOST_SESSIONS:
                batches.append([])
                free = room
            batches[-1].append(run)
            free -= need
        return batches

    def stream(self, batch: Sequence[Run], progress: Callable[[int], None]) -> list[Run]:
        """Stream all turns; returns the runs whose budgets could hold what must stay."""
        from vllm import SamplingParams

        trace = batch[0].trace
        ids = trace.token_ids.tolist()
        alive = list(batch)
        for number, turn in enumerate(trace.turns()):
            requests = []
            forced = ids[turn.prompt_end : turn.end]
            sampling = SamplingParams(
                temperature=0.0,
                max_tokens=max(len(forced), 1),
                ignore_eos=True,
                detokenize=False,
                extra_args={FORCED_KEY: forced} if forced else None,
            )
            for run in alive:
                hints = turn_hints(trace, number, turn, run.id, run.tokens, run.variant)
                requests.append((run, ids[: turn.prompt_end], sampling, hints))
            if len(alive) == 1:
                requests.append(_twin(requests[0]))
            alive = [run for run, _ in self.serve(requests) if run in alive]
            self.after_turn(alive)
            progress(turn.end - (trace.turns()[number - 1].end if number else 0))
        return alive

    def after_turn(self, runs: Sequence[Run]) -> None:
        """Called when a turn of these runs has ended; does nothing here."""

    def _ask(
        self, runs: Sequence[Run], progress: Callable[[int], None]
    ) -> dict[tuple[SessionId, str], tuple[bool, bool]]:
        """Whether the right one of eight was chosen, and whether its token was the most likely of all."""
        from vllm import SamplingParams

        answers = {}
        asked = [fact for fact in (runs[0].trace.facts if runs else ()) if fact.question is not None]
        for fact in asked:
            assert fact.question is not None
            question = token_question(fact.question, self.engine.tokenizer)
            sampling = SamplingParams(
                temperature=0.0,
                max_tokens=1,
                ignore_eos=True,
                detokenize=False,
                logprob_token_ids=list(question.candidates),
            )
            requests = []
            for run in runs:
                n_tokens = run.trace.n_tokens
                last = run.trace.turns()[-1]._replace(prompt_end=n_tokens, end=n_tokens)
                ids = [*run.trace.token_ids.tolist(), *question.stem_ids]
                room = None if run.tokens is None else run.tokens + QUESTION_ROOM_TOKENS
                hints = turn_hints(run.trace, len(run.trace.turns()), last, run.id, room, run.variant)
                spans = (*hints.spans, Span(n_tokens, len(ids), "user"))
                requests.append((run, ids, sampling, hints.model_copy(update={"spans": spans})))
            for run, result in self.serve(requests):
                assert result.logprobs is not None
                right = question.candidates[0]
                answers[run.id, fact.id] = (
                    question.chosen(result.logprobs[0]) == right,
                    result.token_ids[0] == right,
                )
            progress(_QUESTION_TOKENS)
        return answers

    def serve(self, requests: Sequence[_Request]) -> list[tuple[Run, GenerationResult]]:
        """Serve requests, all from the same step on; those whose budget cannot hold what must stay are left out."""

        def submit(*_: Any) -> list[tuple[Run, RequestStream]]:
            streams = []
            for run, ids, sampling, hints in requests:
                try:
                    streams.append((run, self.engine.submit(ids, sampling, hints)))
                except BudgetError:
                    continue
            return streams

        streams = self.engine.run_on_engine_thread(submit)
        return [(run, stream.result()) for run, stream in streams]


def _in_all(progress: Callable[[int], None], sessions: int, tokens: int) -> None:
    progress(tokens * sessions)


def _twin(request: _Request) -> _Request:
    """Company without a budget: vLLM would give a request that is alone larger steps."""
    run, ids, sampling, hints = request
    twin = Run(run.trace, run.variant, None, run.id._replace(thread_id=f"{run.id.thread_id}:twin"))
    return twin, ids, sampling, hints.model_copy(update={"session": twin.id.hint_session, "budget_tokens": None})


def _outcome(
    run: Run, fact: TokenFact, evictions: Sequence[LedgerEntry], answer: tuple[bool, bool] | None
) -> FactOutcome:
    return FactOutcome(
        source=run.trace.source,
        stage="verify",
        length=run.trace.length,
        budget=1.0 if run.budget is None else run.budget,
        policy=run.variant.name or run.variant.policy,
        pinned=run.variant.pinned,
        region=fact.region,
        trace=run.trace.id,
        fact=fact.id,
        survived=survived(fact, evictions),
        correct=None if answer is None else answer[0],
        exact=None if answer is None else answer[1],
        mentioned_again=fact.mentioned_again,
    )
