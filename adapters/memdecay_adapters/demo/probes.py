"""Does the cache still know a fact? An 8-way choice by log-probability, decided under the budget itself.

The prompt is the whole conversation and ``Note: The <attribute>``; the engine is made to write " is" and
the log-probabilities of the next token are compared among eight values of the same kind. The word " is" is
decoded, not prefilled, so that the choice is made with no page more than the budget. Asked as the agent itself,
a probe continues the agent's session in the cache: it reads the very pages that the agent still holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage

from memdecay_adapters.demo.scenario import CHOICES, Fact
from memdecay_adapters.engine.results import GenerationResult
from memdecay_adapters.langchain.prompt import build_prompt
from memdecay_agents.errors import ModelError
from memdecay_agents.hints import RequestHints
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span

if TYPE_CHECKING:
    from memdecay_adapters.engine import MemDecayEngine

FORCED_WORD = " is"


@dataclass(frozen=True)
class ProbeOutcome:
    """One fact, asked once."""

    fact: Fact
    pages: tuple[int, ...]
    """Logical pages that hold the fact's sentence."""
    pages_kept: int
    """Those of them that were held when the choice was made."""
    chosen: str
    """The value with the highest log-probability of eight."""

    @property
    def correct(self) -> bool:
        """Whether the planted value was chosen."""
        return self.chosen == self.fact.value


def ask_all(
    engine: MemDecayEngine,
    messages: Sequence[BaseMessage],
    facts: Sequence[Fact],
    *,
    agent: str,
    thread_id: str,
    budget_tokens: int | None,
    pins: Sequence[str],
) -> list[ProbeOutcome]:
    """Ask for every fact, one after the other.

    Args:
        engine: the engine whose cache is asked.
        messages: the whole conversation.
        facts: what to ask for.
        agent: whose memory is asked.
        thread_id: the conversation's thread; the session is continued if it is still in the cache.
        budget_tokens: the agent's budget; None: the full cache.
        pins: regions pinned.

    Raises:
        ModelError: the tokenizer cannot tell eight candidates apart by their first token.
    """
    prompt = build_prompt(messages, engine.tokenizer, config=engine.config, add_generation_prompt=False)
    outcomes = []
    for fact in facts:
        candidates = first_tokens(engine.tokenizer, fact)
        question = engine.tokenizer(fact.probe, add_special_tokens=False)["input_ids"]
        ids = [*prompt.token_ids, *question]
        hints = RequestHints(
            session=SessionId("default", thread_id, agent).hint_session,
            agent=agent,
            budget_tokens=budget_tokens,
            pins=tuple(pins),
            spans=(*prompt.spans, Span(len(prompt.token_ids), len(ids), "user")),
        )
        result = engine.generate(ids, _sampling(engine.tokenizer, list(candidates)), hints)
        pages = pages_of(prompt.text, fact.sentence, engine.tokenizer, engine.config.page_size_tokens)
        outcomes.append(_outcome(fact, candidates, pages, result))
    return outcomes


def first_tokens(tokenizer: Any, fact: Fact) -> dict[int, str]:
    """Eight candidates by the id of their first token, all different; single-token words come first.

    Raises:
        ModelError: there are fewer than eight.
    """
    encoded = [(tokenizer(f" {word}", add_special_tokens=False)["input_ids"], word) for word in fact.candidates]
    rest = sorted(encoded[1:], key=lambda item: len(item[0]) > 1)
    chosen: dict[int, str] = {}
    for ids, word in [encoded[0], *rest]:
        chosen.setdefault(ids[0], word)
    if len(chosen) < CHOICES:
        raise ModelError(
            where=f"probe for {fact.attribute!r}",
            rule=f"the tokenizer tells only {len(chosen)} of its candidates apart by their first token",
            remedy="Give the fact in memdecay_adapters.demo.scenario more candidates.",
        )
    return dict(list(chosen.items())[:CHOICES])


def pages_of(text: str, sentence: str, tokenizer: Any, page_size_tokens: int) -> tuple[int, ...]:
    """Logical pages that hold a sentence of a prompt; empty if it does not occur.

    Args:
        text: the rendered prompt.
        sentence: what to look for.
        tokenizer: gives character offsets.
        page_size_tokens: tokens in a page.
    """
    start = text.find(sentence)
    if start < 0:
        return ()
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    end = start + len(sentence)
    tokens = [index for index, (a, b) in enumerate(offsets) if a < end and b > start]
    return tuple(range(tokens[0] // page_size_tokens, tokens[-1] // page_size_tokens + 1))


def _sampling(tokenizer: Any, candidates: list[int]) -> Any:
    from vllm import SamplingParams

    forced = tokenizer(FORCED_WORD, add_special_tokens=False)["input_ids"]
    return SamplingParams(
        temperature=0,
        max_tokens=2,
        ignore_eos=True,
        allowed_token_ids=forced[:1],
        logprob_token_ids=candidates,
    )


def _outcome(fact: Fact, candidates: dict[int, str], pages: tuple[int, ...], result: GenerationResult) -> ProbeOutcome:
    assert result.logprobs is not None
    assert result.retention is not None
    after_forced_word = result.logprobs[1]
    best = max(candidates, key=lambda token_id: after_forced_word[token_id].logprob)
    kept = sum(result.retention.holds_page(page) for page in pages)
    return ProbeOutcome(fact, pages, kept, candidates[best])
