"""All stages of an evaluation, in order; what was finished before a kill is not done again."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import memdecay_adapters.engine
from memdecay_adapters.bench.machine import machine, versions
from memdecay_adapters.evaluation.recorder import LONGEST_TOKENS, AttentionRecorder
from memdecay_adapters.evaluation.tokenised import tokenise_trace
from memdecay_adapters.models import DEFAULT_MODEL_NAME, resolve_model
from memdecay_adapters.models.default_model import cache_folder
from memdecay_agents.calibration.profiles import ProfileFile
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError
from memdecay_agents.evaluation.asking import ASKINGS, Asking
from memdecay_agents.evaluation.outcome_store import OutcomeStore, code_digest
from memdecay_agents.evaluation.outcomes import FactOutcome
from memdecay_agents.evaluation.replay import CHUNK_TOKENS, Replay
from memdecay_agents.evaluation.report import EvaluationResult
from memdecay_agents.evaluation.synthetic import synthetic_trace
from memdecay_agents.evaluation.trace_files import read_traces
from memdecay_agents.evaluation.traces import TokenTrace, Trace
from memdecay_agents.evaluation.variants import PAGE_SIZE_TOKENS, Variant, variants_of
from memdecay_agents.recall import LEAST_SHARE, RECENT_SHARE

if TYPE_CHECKING:
    from memdecay_adapters.engine.tier import Recall

Todo = tuple[Variant, float | None]
"""A variant and a budget, a part of the trace's tokens; None: no limit."""
Progress = Callable[[str, int, int], None]
"""Told the stage, the pieces done and all pieces."""


@dataclass(frozen=True)
class EvaluateOptions:
    """What to evaluate."""

    model: str | None = None
    generators: tuple[str, ...] = ("planted",)
    """Sources of synthetic traces; empty: none."""
    trace_files: tuple[Path, ...] = ()
    most_traces: int | None = None
    """Of each file."""
    seeds: tuple[int, ...] = tuple(range(1000, 1008))
    lengths: tuple[int, ...] = (450, 1700)
    budgets: tuple[float, ...] = (0.25, 0.5, 0.75)
    policies: tuple[str, ...] | None = None
    """None: all that are evaluated."""
    profile: Path | None = None
    """A calibrated profile whose half-lives the default policy has; None: its own."""
    verify_part: float = 0.25
    """Part of the traces of each source and length that are verified with the real engine; 0: none."""
    longest_tokens: int = 4096
    """Longer traces of files are left out."""
    shortest_tokens: int = 1
    """Shorter traces of files are left out."""
    supersedes: bool = True
    """Whether the agents say what is superseded."""
    mentions: bool = True
    """Whether synthetic traces name facts again; False: the same sentences name nothing, as a control."""
    tier: Literal["off", "host"] = "off"
    """"host": only the recall stage, with evicted pages in host memory and without."""
    askings: tuple[Asking, ...] = ASKINGS
    """Of the recall stage."""
    recall_pages: int = 4
    """That come back in a turn at most, in the recall stage."""
    least_share: float = LEAST_SHARE
    """Of the recall stage: see `Recall`."""
    recent_share: float = RECENT_SHARE
    """Of the recall stage: see `Recall`."""
    recall_every: int | None = None
    """Tokens of an answer after which it is asked again, in the recall stage."""
    reserve_pages: int = 0
    """Of the budget, kept free for them, in the recall stage."""
    repair_tokens: int | None = None
    """Newest tokens that are computed again after each turn, in the recall stage."""
    cache: Path | None = None

    def check(self) -> None:
        """Check the options against each other.

        Raises:
            ConfigError: nothing to evaluate, or a budget or part that is none.
        """
        bad = [budget for budget in self.budgets if not 0.0 < budget < 1.0]
        if bad or not self.budgets:
            raise ConfigError(
                where="--budgets",
                rule=f"{bad or 'nothing'} is no part of a trace",
                remedy="Give numbers like 0.25,0.5.",
            )
        if not 0.0 <= self.verify_part <= 1.0:
            raise ConfigError(
                where="--verify", rule=f"{self.verify_part} is no part", remedy="Give a number from 0 to 1."
            )
        if self.shortest_tokens > self.longest_tokens:
            raise ConfigError(
                where="--shortest",
                rule=f"{self.shortest_tokens} is more than --longest {self.longest_tokens}: no trace is both",
                remedy="Give --longest at least as many tokens.",
            )
        if not self.trace_files and not (self.generators and self.seeds and self.lengths):
            raise ConfigError(
                where="memdecay evaluate",
                rule="there is nothing to evaluate",
                remedy="Give --generator, --seeds and --lengths, or --traces FILE.",
            )


class Evaluation:
    """One evaluation, stage by stage.

    Args:
        options: what to evaluate.
        progress: told what is done.
    """

    def __init__(self, options: EvaluateOptions, progress: Progress = lambda stage, done, total: None) -> None:
        options.check()
        self.options = options
        self.progress = progress
        self.model_path = resolve_model(options.model)
        self.config = MemDecayConfig(page_size_tokens=PAGE_SIZE_TOKENS)
        self.skipped: list[str] = []
        policies = options.policies or (("full", "memdecay") if options.tier == "host" else None)
        profile = None if options.profile is None else ProfileFile.load(options.profile)
        self.variants = variants_of(
            policies, {} if profile is None else profile.settings(), supersedes=options.supersedes
        )
        folder = options.cache or cache_folder() / "eval"
        self.recorder = AttentionRecorder(self.model_path, self.config, folder / "recordings")
        engine = Path(memdecay_adapters.engine.__file__).parent
        code = code_digest(engine, Path(__file__).parent)
        self.store = OutcomeStore(folder / f"verified-{code}.jsonl")

    def run(self) -> EvaluationResult:
        """Record, replay, verify and sum up; with a host tier: the recall stage instead."""
        traces = self.traces()
        if self.options.tier == "host":
            recalled = self.recall(self.chosen(traces))
            return EvaluationResult(tuple(recalled), self.about(traces, recalled), tuple(self.skipped))
        self.record(traces)
        outcomes = self.replay(traces)
        degenerate = {outcome.key: outcome.degenerate for outcome in outcomes}
        verified = [
            outcome._replace(degenerate=degenerate.get(outcome.key, False))
            for outcome in self.verify(self.chosen(traces))
        ]
        return EvaluationResult((*outcomes, *verified), self.about(traces, verified), tuple(self.skipped))

    def todo(self, trace: TokenTrace) -> list[Todo]:
        """The variants and budgets of a trace."""
        return [
            (variant, budget)
            for variant in self.variants
            for budget in ((None,) if variant.policy == "full" else self.options.budgets)
        ]

    # ---- stages

    def traces(self, *, facts_needed: bool = True) -> list[TokenTrace]:
        """All traces, as tokens; what is too long, or has no facts where they are needed, is noted and left out."""
        from transformers import AutoConfig, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.model_path)
        context = int(getattr(AutoConfig.from_pretrained(self.model_path), "max_position_embeddings", LONGEST_TOKENS))
        longest = min(self.options.longest_tokens, context - 256, LONGEST_TOKENS)
        made = []
        for trace in self._all_traces(lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])):
            tokens = tokenise_trace(trace, tokenizer, self.config)
            if facts_needed and not tokens.facts:
                self.skipped.append(f"{trace.source} {trace.id}: it holds no facts")
            elif tokens.n_tokens > (longest if trace.source not in self.options.generators else context - 256):
                self.skipped.append(f"{trace.source} {trace.id}: {tokens.n_tokens} tokens, at most {longest} are read")
            elif trace.source not in self.options.generators and tokens.n_tokens < self.options.shortest_tokens:
                self.skipped.append(
                    f"{trace.source} {trace.id}: {tokens.n_tokens} tokens, fewer than {self.options.shortest_tokens}"
                )
            else:
                made.append(tokens)
        return made

    def record(self, traces: Sequence[TokenTrace]) -> None:
        """Record what is not recorded yet."""
        for number, trace in enumerate(traces):
            self.progress("record", number, len(traces))
            self.recorder.record(trace)
        self.progress("record", len(traces), len(traces))
        self.recorder.close()

    def replay(self, traces: Sequence[TokenTrace]) -> list[FactOutcome]:
        """Replay all variants and budgets."""
        outcomes, replay = [], Replay()
        for number, trace in enumerate(traces):
            self.progress("replay", number, len(traces))
            outcomes += replay.outcomes(trace, self.recorder.record(trace), self.todo(trace))
        self.progress("replay", len(traces), len(traces))
        return outcomes

    def chosen(self, traces: Sequence[TokenTrace]) -> list[TokenTrace]:
        """The traces that are verified: the same part of each source and length, drawn by a fixed seed."""
        groups: dict[tuple[str, int], list[TokenTrace]] = {}
        for trace in traces:
            groups.setdefault((trace.source, trace.length), []).append(trace)
        made = []
        for (source, length), group in groups.items():
            n = math.ceil(self.options.verify_part * len(group) - 1e-9)
            made += Random(f"verify/{source}/{length}").sample(group, n)
        return made

    def verify(self, traces: Sequence[TokenTrace]) -> list[FactOutcome]:
        """Stream traces through the real engine and ask the questions."""
        from memdecay_adapters.evaluation.verify import EngineVerifier, tokens_of

        missing = [trace for trace in traces if self._key(trace) not in self.store]
        total, done = sum(tokens_of(trace, len(self.todo(trace))) for trace in traces), 0
        outcomes: list[FactOutcome] = []

        def tick(tokens: int) -> None:
            nonlocal done
            done += tokens
            self.progress("verify", done, total)

        tick(0)
        longest = max((trace.n_tokens for trace in missing), default=0)
        verifier = EngineVerifier(self.options.model, longest) if missing else None
        try:
            for trace in traces:
                if verifier is None or self._key(trace) in self.store:
                    outcomes += self.store.get(self._key(trace), list)
                    tick(tokens_of(trace, len(self.todo(trace))))
                    continue
                verify = functools.partial(verifier.verify, trace, self.todo(trace), tick)
                outcomes += self.store.get(self._key(trace), verify)
        finally:
            if verifier is not None:
                verifier.close()
        self.progress("verify", total, total)
        return outcomes

    def recall(self, traces: Sequence[TokenTrace]) -> list[FactOutcome]:
        """Stream traces through an engine without a host tier and through one with it, and ask in all ways."""
        from memdecay_adapters.evaluation.recall_stage import run_recall

        work = [(trace, self.todo(trace)) for trace in traces]
        options = self.options
        return run_recall(
            options.model, work, options.askings, self._recall(), self.store, self.progress, options.repair_tokens
        )

    def _recall(self) -> Recall:
        from memdecay_adapters.engine.tier import Recall

        options = self.options
        return Recall(
            max_pages=options.recall_pages,
            reserve_pages=options.reserve_pages,
            least_share=options.least_share,
            recent_share=options.recent_share,
            every_tokens=options.recall_every,
        )

    def _key(self, trace: TokenTrace) -> str:
        about = [
            self.model_path,
            trace.id,
            trace.source,
            hashlib.sha256(trace.token_ids.tobytes()).hexdigest(),
            [fact.id for fact in trace.facts],
            [[v.label, v.pinned, v.supersedes, v.config().model_dump_json(), budget] for v, budget in self.todo(trace)],
        ]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def _all_traces(self, count_tokens: Callable[[str], int]) -> Iterable[Trace]:
        for generator in self.options.generators:
            for length in self.options.lengths:
                for seed in self.options.seeds:
                    yield synthetic_trace(generator, seed, length, count_tokens, mentions=self.options.mentions)
        for path in self.options.trace_files:
            yield from read_traces(path, most=self.options.most_traces)

    def about(self, traces: Sequence[TokenTrace], verified: Sequence[FactOutcome]) -> dict[str, Any]:
        """What was evaluated, on what, and how the number of probes comes about."""
        asked = [outcome for outcome in verified if outcome.correct is not None]
        streamed = {outcome.trace for outcome in asked}
        cells = {(outcome.policy, outcome.pinned, outcome.budget) for outcome in asked}
        factorisation = (
            f"{len(asked)} probes asked under real eviction: {len(streamed)} traces x up to {len(cells)} policies and "
            "budgets x their facts, less budgets that cannot hold what must stay"
            if asked
            else "nothing was asked under real eviction"
        )
        return {
            "model": self.options.model or DEFAULT_MODEL_NAME,
            "chunk_tokens": CHUNK_TOKENS,
            "traces": len(traces),
            "verified_traces": len({outcome.trace for outcome in verified}),
            "probes": len(asked),
            "factorisation": factorisation,
            "exact_answers": sum(bool(outcome.exact) for outcome in asked),
            "ceiling": _rate([o for o in asked if o.policy == "full"]),
            "right_where_survived": _rate([o for o in asked if o.survived]),
            "right_where_lost": _rate([o for o in asked if not o.survived]),
            "chance": 0.125,
            "seeds": list(self.options.seeds),
            "recall_settings": None if self.options.tier == "off" else self._recall().model_dump(mode="json"),
            "repair_tokens": self.options.repair_tokens,
            "supersedes": self.options.supersedes,
            "mentions": self.options.mentions,
            "profile": None if self.options.profile is None else self.options.profile.name,
            "versions": versions(),
            "machine": machine(),
        }


def _rate(outcomes: Sequence[FactOutcome]) -> float | None:
    return round(sum(bool(o.correct) for o in outcomes) / len(outcomes), 4) if outcomes else None
