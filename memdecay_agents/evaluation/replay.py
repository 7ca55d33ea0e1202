"""Replay: the product's own session state, policy and plans on recorded attention, in the engine's order of events.

    turn     begin_turn, relabel, plan
    step     plan -> apply -> allocate -> on_computed -> learn -> observe
    end      plan to the budget: the session leaves with no more

What it leaves out: keys and values computed after an eviction differ a little from the recorded ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memdecay_agents.config import MemDecayConfig
from memdecay_agents.evaluation.outcomes import FactOutcome, at_risk, survived
from memdecay_agents.evaluation.recording import AttentionRecording
from memdecay_agents.evaluation.schedule import Step, turn_steps
from memdecay_agents.evaluation.traces import TokenTrace, Turn
from memdecay_agents.evaluation.variants import PINS, Variant
from memdecay_agents.hints import RequestHints
from memdecay_agents.ledger_entry import LedgerEntry
from memdecay_agents.observations import Observation
from memdecay_agents.policies import Policy
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span, SpanFlag, clip

CHUNK_TOKENS = 32
"""Most tokens of one prefill step."""
MOST_SESSIONS = 40
"""Sessions that a verification streams at once: all policies and budgets of a trace. A step of the engine costs little
more for 40 sessions than for 12."""
AGENT = "agent"


@dataclass(frozen=True)
class ReplayResult:
    """What one session evicted and held."""

    evictions: tuple[LedgerEntry, ...]
    held_pages: tuple[int, ...]
    fixed_pages: int
    """Pinned and protected pages among those held at the end."""


def session_id(trace: TokenTrace, variant: Variant, budget: float | None) -> SessionId:
    """The session of one trace under one variant and budget."""
    return SessionId("evaluation", f"{trace.source}:{trace.id}:{budget or 1.0:g}", f"{AGENT}|{variant.label}")


def budget_tokens(trace: TokenTrace, budget: float | None) -> int | None:
    """A part of the trace's tokens; None: no limit."""
    return None if budget is None else round(budget * trace.n_tokens)


def turn_spans(trace: TokenTrace, turn: Turn, *, supersedes: bool) -> tuple[Span, ...]:
    """The spans of a turn's prompt, with what is superseded by then."""
    spans = clip(trace.spans, 0, turn.prompt_end)
    if supersedes:
        for start, end, since in trace.superseded:
            if since < turn.prompt_end:
                spans = [
                    piece._replace(flags=piece.flags | SpanFlag.SUPERSEDED) if inside else piece
                    for a, b, inside in ((0, start, False), (start, end, True), (end, turn.prompt_end, False))
                    for piece in clip(spans, a, b)
                ]
    return tuple(spans)


def turn_hints(
    trace: TokenTrace, number: int, turn: Turn, session: SessionId, budget: int | None, variant: Variant
) -> RequestHints:
    """What the agent's adapter would send with a turn."""
    written = next((span.region for span in trace.spans if span.start <= turn.prompt_end < span.end), "scratchpad")
    return RequestHints(
        tenant=session.tenant,
        session=session.hint_session,
        agent=session.agent_path,
        turn=number,
        budget_tokens=budget,
        pins=PINS if variant.pinned else (),
        spans=turn_spans(trace, turn, supersedes=variant.supersedes),
        output_region=written,
    )


class Replay:
    """Replays traces; holds nothing between two of them.

    Args:
        chunk_tokens: most tokens of one prefill step.
    """

    def __init__(self, chunk_tokens: int = CHUNK_TOKENS) -> None:
        self.chunk_tokens = chunk_tokens

    def run(
        self, trace: TokenTrace, recording: AttentionRecording, variant: Variant, budget: float | None
    ) -> ReplayResult:
        """Play one trace under one variant and budget (a part of its tokens; None: no limit)."""
        config = variant.config()
        policy = variant.make_policy(config)
        session = _Session(recording, config, policy, session_id(trace, variant, budget))
        tokens = budget_tokens(trace, budget)
        for number, turn in enumerate(trace.turns()):
            hints = turn_hints(trace, number, turn, session.id, tokens, variant)
            session.begin_turn(hints, turn)
            for step in turn_steps(turn, session.computed, self.chunk_tokens):
                session.step(step)
            session.plan(session.computed, 0)
        return session.result()

    def outcomes(
        self, trace: TokenTrace, recording: AttentionRecording, variants: Sequence[tuple[Variant, float | None]]
    ) -> list[FactOutcome]:
        """Outcomes of all facts that a budget puts at risk, for each variant and budget."""
        made = []
        for variant, budget in variants:
            result = self.run(trace, recording, variant, budget)
            pages = (budget_tokens(trace, budget) or 0) // variant.config().page_size_tokens
            made += [
                FactOutcome(
                    source=trace.source,
                    stage="replay",
                    length=trace.length,
                    budget=1.0 if budget is None else budget,
                    policy=variant.name or variant.policy,
                    pinned=variant.pinned,
                    region=fact.region,
                    trace=trace.id,
                    fact=fact.id,
                    survived=survived(fact, result.evictions),
                    degenerate=bool(pages) and 2 * result.fixed_pages > pages,
                    mentioned_again=fact.mentioned_again,
                )
                for fact in at_risk(trace.facts, budget_tokens(trace, budget))
            ]
        return made


class _Session:
    """One session between the recording and the product's state."""

    def __init__(
        self, recording: AttentionRecording, config: MemDecayConfig, policy: Policy, session: SessionId
    ) -> None:
        self.id = session
        self.recording, self.config, self.policy = recording, config, policy
        self.token_ids: list[int] = recording.token_ids.tolist()
        self.state = SessionState(session, session.agent_path, config, policy)
        self.held: list[int] = []
        self.computed = 0
        self._unobserved_steps = 0

    def begin_turn(self, hints: RequestHints, turn: Turn) -> None:
        rest = tuple(clip(hints.spans, self.computed, turn.prompt_end))
        self.state.begin_turn(hints.model_copy(update={"base": self.computed, "spans": rest}), turn.prompt_end)
        if self.computed:
            self.state.tokens.relabel(clip(hints.spans, 0, self.computed))
            self.plan(self.computed, 0)
        self._unobserved_steps = 0

    def plan(self, processed_tokens: int, new_pages: int) -> None:
        plan = self.state.plan(processed_tokens, self.held, new_pages)
        if plan.pages:
            self.state.apply(plan)
            self.held = sorted(set(self.held) - set(plan.pages))

    def step(self, step: Step) -> None:
        page = self.config.page_size_tokens
        row_pages = -(-step.start // page)
        self.plan(step.start, max(step.start // page + 1 - row_pages, 0) if step.is_decode else 0)
        new = range(row_pages, -(-step.end // page))
        self.held.extend(new)
        self.state.note_held(self.held[len(self.held) - len(new) :])
        self.state.on_computed(step.end - step.start, int(step.samples))
        self.state.learn(self.token_ids)
        self.computed = step.end
        if self.state.budget is not None and self.policy.uses_attention:
            self._observe(step)

    def _observe(self, step: Step) -> None:
        n_new = step.end - step.start
        if n_new > 1:
            queries, represented = min(self.config.query_window_tokens, n_new), n_new
        else:
            self._unobserved_steps += 1
            if self._unobserved_steps < self.config.measure_every_steps:
                return
            queries, represented = 1, self._unobserved_steps
            self._unobserved_steps = 0
        page = self.config.page_size_tokens
        tokens = (np.asarray(self.held, dtype=np.int64)[:, None] * page + np.arange(page)).ravel()
        tokens = tokens[tokens < step.end]
        mass = self.recording.mass_of(step.end - queries, step.end, tokens)
        first = self.state.tokens.normed_tokens // page * page
        norms = self.recording.key_norms[tokens[tokens >= first]]
        self.state.observe(Observation(tokens, mass, represented, n_new == 1, key_norms=norms))

    def result(self) -> ReplayResult:
        view = self.state.view(self.computed, self.held)
        return ReplayResult(
            tuple(self.state.ledger.entries()),
            tuple(self.held),
            int((view.pinned | view.protected).sum()),
        )
