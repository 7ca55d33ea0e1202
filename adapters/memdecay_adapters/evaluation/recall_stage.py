"""The recall stage: what an agent still answers when evicted pages are kept in host memory, and when they are not.

The engine, the traces and the stream of turns are those of the verification. Questions are asked one after another in
the same session: what one question swaps in is what the next one finds.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from memdecay_adapters.engine.tier import HostTier, Recall
from memdecay_adapters.evaluation.forced_tokens import FORCED_KEY
from memdecay_adapters.evaluation.questions import chat_turn, token_question
from memdecay_adapters.evaluation.verify import EngineVerifier, Run
from memdecay_adapters.models import resolve_model
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.evaluation.asking import Asking, asked_facts
from memdecay_agents.evaluation.outcome_store import OutcomeStore
from memdecay_agents.evaluation.outcomes import FactOutcome, at_risk
from memdecay_agents.evaluation.replay import turn_hints
from memdecay_agents.evaluation.traces import TokenFact, TokenTrace
from memdecay_agents.evaluation.variants import Variant
from memdecay_agents.spans import Span

TIERS: tuple[Literal["off"], Literal["host"]] = ("off", "host")
TIER_BYTES = 2**32
"""Enough for every page of a trace."""


class _Asked(NamedTuple):
    """One request: a question's ids, what is forced before the value, the candidates' ids (none: nothing to choose)."""

    fact: TokenFact
    stem: list[int]
    forced: list[int]
    candidates: tuple[int, ...]


class RecallVerifier(EngineVerifier):
    """An engine with a host tier, or without; close it when done.

    Args:
        model: a Hugging Face id, a folder, or None for the default model.
        longest_tokens: of the traces.
        tier: whether it has one.
        recall: how pages come back.
        repair_tokens: newest tokens that are computed again after each turn; None: none.
        engine_args: laid over those chosen for a verification.
    """

    def __init__(
        self,
        model: str | None,
        longest_tokens: int,
        tier: Literal["off", "host"],
        recall: Recall | None = None,
        repair_tokens: int | None = None,
        engine_args: dict[str, Any] | None = None,
    ) -> None:
        self.tier: Literal["off", "host"] = tier
        self.repair_tokens = repair_tokens if tier == "host" else None
        host_tier = HostTier(max_bytes=TIER_BYTES, recall=recall or Recall()) if tier == "host" else None
        super().__init__(model, longest_tokens, engine_args, host_tier=host_tier)

    def recall(
        self,
        trace: TokenTrace,
        variants: Sequence[tuple[Variant, float | None]],
        askings: Sequence[Asking],
    ) -> list[FactOutcome]:
        """Outcomes of one trace; a budget that cannot hold what must stay is left out.

        Args:
            trace: what to stream.
            variants: with their budgets, parts of the trace's tokens; None: no limit.
            askings: the ways to ask.
        """
        made: list[FactOutcome] = []
        for batch in self.prepared(trace, variants):
            streamed = self.stream(batch, lambda _: None)
            for asking in askings:
                for asked in self._questions(trace, asking):
                    made += self._answers(streamed, asked, asking)
            self.engine.close_sessions()
        return made

    def after_turn(self, runs: Sequence[Run]) -> None:
        """Repair the sessions, as an engine does of itself while an agent waits for its tool."""
        if self.repair_tokens is not None:
            for run in runs:
                self.engine.repair(
                    run.id.thread_id, agent=run.id.agent_path, tenant=run.id.tenant, last_tokens=self.repair_tokens
                )

    def _questions(self, trace: TokenTrace, asking: Asking) -> Iterator[_Asked]:
        tokenizer = self.engine.tokenizer
        if asking == "chat":
            for fact in trace.facts:
                if fact.asked_as:
                    turn = chat_turn(fact.asked_as, tokenizer)
                    ids = list(tokenizer(turn, add_special_tokens=False)["input_ids"])
                    yield _Asked(fact, ids, [], ())
            return
        for fact, question, answered in asked_facts(trace.facts, asking, trace.id):
            tokens = token_question(question, tokenizer)
            forced = tokenizer(answered, add_special_tokens=False)["input_ids"] if answered else []
            yield _Asked(fact, list(tokens.stem_ids), list(forced), tokens.candidates)

    def _room(self, budget_tokens: int, n_tokens: int, asked_tokens: int) -> int:
        """The budget and the pages that a question and its answer add, no more: asking evicts nothing by itself."""
        page = self.engine.config.page_size_tokens
        added = -(-(n_tokens + asked_tokens + 1) // page) - -(-n_tokens // page)
        return (budget_tokens // page + added) * page

    def _answers(self, runs: Sequence[Run], asked: _Asked, asking: Asking) -> list[FactOutcome]:
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=len(asked.forced) + 1,
            ignore_eos=True,
            detokenize=False,
            logprob_token_ids=list(asked.candidates) or None,
            extra_args={FORCED_KEY: asked.forced} if asked.forced else None,
        )
        requests = []
        for run in runs:
            trace, n_tokens = run.trace, run.trace.n_tokens
            last = trace.turns()[-1]._replace(prompt_end=n_tokens, end=n_tokens)
            room = None if run.tokens is None else self._room(run.tokens, n_tokens, len(asked.stem) + len(asked.forced))
            hints = turn_hints(trace, len(trace.turns()), last, run.id, room, run.variant)
            spans = (*hints.spans, Span(n_tokens, n_tokens + len(asked.stem), "user"))
            ids = [*trace.token_ids.tolist(), *asked.stem]
            requests.append((run, ids, sampling, hints.model_copy(update={"spans": spans})))
        made = []
        for run, result in self.serve(requests):
            if asked.fact not in at_risk(run.trace.facts, run.tokens):
                continue
            page, summary = self.engine.config.page_size_tokens, result.retention
            pages = range(asked.fact.start // page, (asked.fact.end - 1) // page + 1)
            correct = exact = None
            if asked.candidates:
                assert result.logprobs is not None
                assert list(result.token_ids[:-1]) == asked.forced
                right, logprobs = asked.candidates[0], result.logprobs[-1]
                correct = max(asked.candidates, key=lambda token: logprobs[token].logprob) == right
                exact = result.token_ids[-1] == right
            made.append(
                FactOutcome(
                    source=run.trace.source,
                    stage="recall",
                    length=run.trace.length,
                    budget=1.0 if run.budget is None else run.budget,
                    policy=run.variant.name or run.variant.policy,
                    pinned=run.variant.pinned,
                    region=asked.fact.region,
                    trace=run.trace.id,
                    fact=asked.fact.id,
                    survived=run.budget is None or (summary is not None and all(map(summary.holds_page, pages))),
                    correct=correct,
                    exact=exact,
                    degenerate=is_degenerate(run.trace, run.tokens, self.engine.config),
                    mentioned_again=asked.fact.mentioned_again,
                    tier=self.tier,
                    asking=asking,
                )
            )
        return made


def is_degenerate(trace: TokenTrace, budget_tokens: int | None, config: MemDecayConfig) -> bool:
    """Whether pinned and protected pages fill more than half of the budget at the trace's end."""
    if budget_tokens is None:
        return False
    page, n_tokens = config.page_size_tokens, trace.n_tokens
    fixed = set(range(config.sink_pages)) | set(range((n_tokens - config.recent_tokens) // page, -(-n_tokens // page)))
    for span in trace.spans:
        if span.region == "system":
            fixed |= set(range(span.start // page, (span.end - 1) // page + 1))
    return 2 * len(fixed) > budget_tokens // page


def run_recall(
    model: str | None,
    work: Sequence[tuple[TokenTrace, Sequence[tuple[Variant, float | None]]]],
    askings: Sequence[Asking],
    recall: Recall,
    store: OutcomeStore,
    progress: Callable[[str, int, int], None],
    repair_tokens: int | None = None,
) -> list[FactOutcome]:
    """The whole stage: without a tier, then with one; pieces that are in the store are not done again.

    Args:
        model: a Hugging Face id, a folder, or None for the default model.
        work: traces, with the variants and budgets of each; what has no budget only runs without a tier.
        askings: the ways to ask.
        recall: how pages come back.
        store: of finished pieces.
        progress: told the stage, the tokens that are done and all tokens.
        repair_tokens: see `RecallVerifier`.
    """
    outcomes: list[FactOutcome] = []
    total, done = 2 * sum(trace.n_tokens for trace, _ in work), 0
    for tier in TIERS:
        pieces = []
        for trace, variants in work:
            todo = [(variant, budget) for variant, budget in variants if budget is not None or tier == "off"]
            how = (recall, repair_tokens) if tier == "host" else (None, None)
            pieces.append((trace, todo, _key(resolve_model(model), trace, how, todo, askings)))
        missing = [trace for trace, _, key in pieces if key not in store]
        longest = max((trace.n_tokens for trace in missing), default=0)
        verifier = RecallVerifier(model, longest, tier, recall, repair_tokens) if missing else None
        try:
            for trace, todo, key in pieces:
                progress("recall", done, total)
                make = functools.partial(verifier.recall, trace, todo, askings) if verifier is not None else list
                outcomes += store.get(key, make)
                done += trace.n_tokens
        finally:
            if verifier is not None:
                verifier.close()
    progress("recall", total, total)
    return outcomes


def _key(
    model_path: str,
    trace: TokenTrace,
    how: tuple[Recall | None, int | None],
    todo: Sequence[tuple[Variant, float | None]],
    askings: Sequence[Asking],
) -> str:
    facts = [(fact.id, fact.asked_as, fact.question and fact.question.stem) for fact in trace.facts]
    variants = [(variant.label, variant.config().model_dump_json(), budget) for variant, budget in todo]
    what = [model_path, trace.id, trace.token_ids.tobytes().hex(), facts, how[0] and how[0].model_dump_json()]
    repaired = [] if how[1] is None else [how[1]]
    return hashlib.sha256(repr([*what, *repaired, variants, list(askings)]).encode()).hexdigest()
