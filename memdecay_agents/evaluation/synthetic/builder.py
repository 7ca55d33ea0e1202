"""From a domain and a seed to a trace of about a given length with facts in all seven regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

from memdecay_agents.errors import TraceError
from memdecay_agents.evaluation.synthetic.domain import Domain
from memdecay_agents.evaluation.synthetic.longwinded import LONGWINDED
from memdecay_agents.evaluation.synthetic.paraphrased import PARAPHRASED
from memdecay_agents.evaluation.synthetic.planted import PLANTED, VARIED
from memdecay_agents.evaluation.synthetic.retold import RETOLD
from memdecay_agents.evaluation.synthetic.reworded import REWORDED
from memdecay_agents.evaluation.synthetic.values import POOLS
from memdecay_agents.evaluation.traces import Fact, Question, Trace

GENERATORS: Mapping[str, Domain] = {
    "planted": PLANTED,
    "varied": VARIED,
    "reworded": REWORDED,
    "longwinded": LONGWINDED,
    "paraphrased": PARAPHRASED,
    "retold": RETOLD,
}
CHOICES = 8
SHORTEST_TOKENS = 350
_LONG_TOKENS = 900
"""From here on there are more facts and results that become out of date."""

_SHARE = {
    "system": 0.0, "user": 0.15, "plan": 0.11, "tool_in": 0.13, "tool_out": 0.23, "retrieval": 0.23, "scratchpad": 0.15,
}  # fmt: skip
"""Share of the tokens behind the system message that each region gets."""
_TOKENS_PER_ROUND = 420
_SYSTEM_TOKENS = (30, 72)
"""Of the system message in short and in long traces: pinned pages must not fill the budget."""
_OVERHEAD_TOKENS = {"tool_in": 27, "tool_out": 5}
"""What a chat template writes around a message; 5 where nothing stands here."""
_NOTHING = "other one"
"""What a mention names that names no fact."""
_CLOSING_TOKENS = 56
"""A stretch without facts at the end, so that none survives only for being recent."""


def synthetic_trace(
    generator: str, seed: int, n_tokens: int, count_tokens: Callable[[str], int], *, mentions: bool = True
) -> Trace:
    """Make one trace.

    Args:
        generator: a key of ``GENERATORS``.
        seed: the same seed makes the same trace.
        n_tokens: about so many, within a few percent.
        count_tokens: of the model that will read it.
        mentions: False: sentences that name a fact again name nothing in its place, as a control; the facts that the
            trace would name are marked as mentioned all the same.

    Raises:
        TraceError: an unknown generator, or too short for facts in seven regions.
    """
    if generator not in GENERATORS:
        raise TraceError(
            where=f"generator {generator!r}",
            rule=f"unknown; known are {', '.join(GENERATORS)}",
            remedy="Use one of them.",
        )
    if n_tokens < SHORTEST_TOKENS:
        raise TraceError(
            where=f"a synthetic trace of {n_tokens} tokens",
            rule=f"facts in seven regions need at least {SHORTEST_TOKENS}",
            remedy="Ask for a longer one.",
        )
    trace = _Builder(generator, seed, n_tokens, count_tokens, mentions=True).build()
    if mentions:
        return trace
    again = {fact.id for fact in trace.facts if fact.mentioned_again}
    control = _Builder(generator, seed, n_tokens, count_tokens, mentions=False).build()
    return replace(control, facts=tuple(replace(f, mentioned_again=f.id in again) for f in control.facts))


class _Builder:
    def __init__(
        self, generator: str, seed: int, n_tokens: int, count_tokens: Callable[[str], int], *, mentions: bool
    ) -> None:
        self.mentions = mentions
        self.generator, self.n_tokens, self.seed, self.count = generator, n_tokens, seed, count_tokens
        self.domain = GENERATORS[generator]
        self.draw = Random(f"{generator}/{seed}/{n_tokens}")
        self.messages: list[dict[str, Any]] = []
        self.facts: list[Fact] = []
        self.supersedes: dict[int, int] = {}
        self.owed = 0.0
        """Tokens that the messages so far should have and do not."""
        self.n_facts = {region: self._facts_in(region) for region in _SHARE}
        self._values = self._draw_values(sum(self.n_facts.values()))
        self.rounds = max(1, round(n_tokens / _TOKENS_PER_ROUND))

    def _facts_in(self, region: str) -> int:
        long = self.n_tokens >= _LONG_TOKENS
        if region == "system":
            return 6 if long else 3
        return 2 if not long else min(3 + self.n_tokens // 4000, 5)

    def _draw_values(self, n: int) -> Iterator[tuple[str, Question]]:
        """Attributes with values such that each pool keeps seven values that the trace does not use."""
        slots = [
            (kind, attribute)
            for kind, attributes in self.domain.attributes.items()
            for attribute in attributes[: len(POOLS[kind]) - CHOICES + 1]
        ]
        chosen = self.draw.sample(slots, n)
        pools = {kind: self.draw.sample(words, len(words)) for kind, words in POOLS.items()}
        used = {kind: sum(k == kind for k, _ in chosen) for kind in pools}
        for kind, attribute in chosen:
            value = pools[kind].pop(0)
            used[kind] -= 1
            wrong = tuple(pools[kind][used[kind] :])
            yield attribute, Question(f"\nNote: The {attribute} is", (value, *wrong), attribute)

    def build(self) -> Trace:
        plan = self._plan()
        for region, n_facts, share in plan:
            self._add(region, n_facts, share)
        self._close()
        self._supersede(["" if region == "system" else region for region, _, _ in plan])
        return Trace(
            id=f"{self.generator}-{self.n_tokens}-{self.seed}",
            source=self.generator,
            messages=tuple(self.messages),
            facts=tuple(self.facts),
            nominal_tokens=self.n_tokens,
            supersedes=dict(self.supersedes),
        )

    def _plan(self) -> list[tuple[str, int, float]]:
        """(region, facts, share of the tokens) of each message, in order."""
        order = ["system"]
        for number in range(self.rounds):
            order += ["user", "plan"] if number % 2 == 0 else ["user"]
            order += ["retrieval", "scratchpad", "tool_in", "tool_out"]
        slots: dict[str, list[int]] = {}
        for position, region in enumerate(order):
            slots.setdefault(region, []).append(position)
        n_facts = [0] * len(order)
        for region, wanted in self.n_facts.items():
            for number in range(wanted):
                n_facts[self.draw.choice(slots[region]) if number else slots[region][0]] += 1
        return [
            (region, facts, _SHARE[region] / len(slots[region])) for region, facts in zip(order, n_facts, strict=True)
        ]

    def _add(self, region: str, n_facts: int, share: float) -> None:
        system = _SYSTEM_TOKENS[self.n_tokens >= _LONG_TOKENS]
        self.owed += share * (self.n_tokens - _CLOSING_TOKENS - system) if share else system
        overhead = _OVERHEAD_TOKENS.get(region, 5)
        new = []
        for _ in range(n_facts):
            attribute, question = next(self._values)
            text = self.draw.choice(self.domain.state_fact)(attribute, question.candidates[0])
            new.append((attribute, text, question))
        sentences = [text for _, text, _ in new]
        if region == "scratchpad" and self.facts and self.draw.random() < 0.7:
            sentences.append(self._mention())
        n_tokens = sum(self.count(" " + text) for text in sentences)
        while True:
            sentence = self.domain.sentence(region, self.draw)
            longer = n_tokens + self.count(" " + sentence)
            if (n_tokens + longer) / 2 + overhead > self.owed:
                break
            sentences.append(sentence)
            n_tokens = longer
        if not sentences:
            sentences.append(self.domain.sentence(region, self.draw))
            n_tokens = self.count(" " + sentences[0])
        self.owed -= n_tokens + overhead
        self.draw.shuffle(sentences)
        self._write(region, sentences)
        at = len(self.messages) - 1
        for attribute, text, question in new:
            self.facts.append(Fact(f"{region}/{attribute}", at, text, question))

    def _mention(self) -> str:
        index = self.draw.randrange(len(self.facts))
        fact = self.facts[index]
        self.facts[index] = Fact(fact.id, fact.message, fact.text, fact.question, mentioned_again=True)
        named = fact.id.partition("/")[2] if self.mentions else _NOTHING
        return self.draw.choice(self.domain.mention).format(attribute=named)

    def _write(self, region: str, sentences: list[str]) -> None:
        text = " ".join(sentences)
        if region == "tool_in":
            call = {
                "id": f"call_{len(self.messages)}",
                "name": self.draw.choice(self.domain.tools),
                "args": {"query": text},
            }
            self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif region == "tool_out":
            call_id = self.messages[-1]["tool_calls"][0]["id"]
            self.messages.append({"role": "tool", "content": "\n".join(sentences), "tool_call_id": call_id})
        elif region == "retrieval":
            self.messages.append({"role": "user", "content": text, "region": region})
        elif region in ("plan", "scratchpad"):
            self.messages.append({"role": "assistant", "content": text, "region": region})
        else:
            self.messages.append({"role": region, "content": text})

    def _supersede(self, regions: list[str]) -> None:
        """Plans and tool results without facts are replaced by the next of their kind."""
        holds_fact = {fact.message for fact in self.facts}
        for region in ("plan", "tool_out"):
            places = [place for place, name in enumerate(regions) if name == region]
            for old, new in pairwise(places):
                if old not in holds_fact:
                    self.supersedes[new] = old

    def _close(self) -> None:
        for region, n_tokens in (("user", _CLOSING_TOKENS // 2), ("scratchpad", _CLOSING_TOKENS // 2)):
            sentences: list[str] = []
            while sum(self.count(" " + text) for text in sentences) + 10 < n_tokens:
                sentences.append(self.domain.sentence(region, self.draw))
            self._write(region, sentences)
