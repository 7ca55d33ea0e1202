"""Find a model's retrieval heads: plant facts, ask for each, see which KV heads look at the right page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from memdecay_adapters.evaluation.questions import chat_turn
from memdecay_adapters.evaluation.tokenised import tokenise_trace
from memdecay_adapters.models import DEFAULT_MODEL_NAME, resolve_model
from memdecay_adapters.recall.fingerprint import fingerprint_of
from memdecay_adapters.recall.reader import Reader
from memdecay_agents.arrays import BoolArray, IndexArray
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import TraceError, UnsupportedError
from memdecay_agents.evaluation.synthetic import synthetic_trace
from memdecay_agents.evaluation.traces import TokenFact, TokenTrace
from memdecay_agents.recall.choosing import AskedPages, choose_heads, recall_at
from memdecay_agents.recall.estimator import page_evidence
from memdecay_agents.recall.heads import RetrievalHead, RetrievalHeads

Progress = Callable[[str, int, int], None]
"""Told the stage, the pieces done and all pieces."""
RECALL_AT = (1, 2, 4, 8)


@dataclass(frozen=True)
class HeadCalibration:
    """What to plant and how to ask."""

    generators: tuple[str, ...] = ("planted", "varied")
    """Never those that evaluation holds out."""
    lengths: tuple[int, ...] = (450, 1700)
    choose_seeds: tuple[int, ...] = (0, 1)
    check_seeds: tuple[int, ...] = (2,)
    """Their traces only measure what was chosen."""
    page_size_tokens: int = 16
    query_tokens: int = 16

    def cost(self) -> str:
        """What a calibration computes, in words."""
        traces = len(self.generators) * (len(self.choose_seeds) + len(self.check_seeds))
        return f"reads {traces * len(self.lengths)} texts, {traces * sum(self.lengths):,} tokens in all, in float32"


def calibrate_heads(
    model: str | None,
    options: HeadCalibration | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> RetrievalHeads:
    """Find the retrieval heads of a model; two to three minutes for 135 million weights on one core.

    Args:
        model: a folder, a Hugging Face id, or None for the default model.
        options: what to plant.
        progress: told what is done.

    Raises:
        UnsupportedError: the model has no layer that attends to the whole text, or attends in a way that is not known.
        TraceError: no question could be asked.
    """
    from transformers import AutoTokenizer

    options = options or HeadCalibration()
    path = resolve_model(model, require_weights=True)
    tokenizer, reader = AutoTokenizer.from_pretrained(path), Reader(path)
    found: dict[bool, list[AskedPages]] = {True: [], False: []}
    layers: list[tuple[int, int]] = []
    wanted = [
        (generator, length, seed)
        for generator in options.generators
        for length in options.lengths
        for seed in (*options.choose_seeds, *options.check_seeds)
    ]
    for number, (generator, length, seed) in enumerate(wanted):
        progress("heads", number, len(wanted))
        trace = synthetic_trace(generator, seed, length, lambda text: len(_ids(tokenizer, text)))
        tokens = tokenise_trace(trace, tokenizer, MemDecayConfig(page_size_tokens=options.page_size_tokens))
        reader.read(tokens.token_ids.tolist())
        for fact in tokens.facts:
            if fact.question is not None and fact.region != "system":
                for question in (fact.question.stem, chat_turn(f"What is the {fact.question.attribute}?", tokenizer)):
                    asked, layers = ask(reader, tokenizer, tokens, fact, question, options)
                    found[seed in options.choose_seeds].append(asked)
    progress("heads", len(wanted), len(wanted))
    if not found[False]:
        raise TraceError(where="retrieval heads", rule="no seeds are left to check by", remedy="Give check_seeds.")
    chosen = choose_heads(found[True])
    return RetrievalHeads(
        model=DEFAULT_MODEL_NAME if model is None else model,
        fingerprint=fingerprint_of(path),
        heads=tuple(RetrievalHead(*layers[index]) for index in chosen),
        recall_at=recall_at(found[False], chosen, RECALL_AT),
        page_size_tokens=options.page_size_tokens,
        query_tokens=options.query_tokens,
        questions=len(found[False]),
    )


def ask(
    reader: Reader, tokenizer: Any, trace: TokenTrace, fact: TokenFact, question: str, options: HeadCalibration
) -> tuple[AskedPages, list[tuple[int, int]]]:
    """One question's evidence by KV head, and which (layer, KV head) each row is.

    Args:
        reader: has read the trace.
        tokenizer: of its model.
        trace: with the fact in it.
        fact: one with values to choose from.
        question: text behind the trace.
        options: page size and window.

    Raises:
        UnsupportedError: no layer attends to the whole text.
    """
    assert fact.question is not None
    page = options.page_size_tokens
    pages, valid = candidate_pages(trace, page)
    rows: list[Any] = []
    heads: list[tuple[int, int]] = []

    def see(layer: int, queries: torch.Tensor, keys: torch.Tensor, scale: float) -> None:
        n_kv, head_dim = keys.shape[0], keys.shape[-1]
        n_new = min(queries.shape[1], options.query_tokens)
        last = queries[:, -n_new:].reshape(n_kv, -1, n_new, head_dim).permute(0, 2, 1, 3).numpy()
        own = np.pad(keys[:, : trace.n_tokens].numpy(), ((0, 0), (0, -trace.n_tokens % page), (0, 0)))
        own = own.reshape(n_kv, -1, page, head_dim)[:, pages]
        for head in range(n_kv):
            rows.append(page_evidence(last[head][:, None], own[head][:, :, None], valid, scale))
            heads.append((layer, head))

    reader.ask(_ids(tokenizer, question), see)
    if not rows:
        raise UnsupportedError(
            where=f"model {reader.model_path!r}",
            rule="no layer attends to the whole text",
            remedy="Recall by evidence needs one.",
        )
    at = {int(index): row for row, index in enumerate(pages)}
    ids = trace.token_ids[fact.start : fact.end].tolist()
    first = _ids(tokenizer, f" {fact.question.candidates[0]}")[0]
    value = fact.start + (ids.index(first) if first in ids else 0)
    fact_pages = tuple(at[index] for index in range(fact.start // page, (fact.end - 1) // page + 1) if index in at)
    return AskedPages(np.stack(rows), at[value // page], fact_pages), heads


def candidate_pages(trace: TokenTrace, page: int) -> tuple[IndexArray, BoolArray]:
    """Pages behind the system message, int64 [n], and which of their tokens exist, bool [n, page]."""
    pinned = max((span.end for span in trace.spans if span.region == "system"), default=0)
    pages = np.arange(pinned // page, -(-trace.n_tokens // page))
    return pages, pages[:, None] * page + np.arange(page) < trace.n_tokens


def _ids(tokenizer: Any, text: str) -> Sequence[int]:
    ids: Sequence[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
