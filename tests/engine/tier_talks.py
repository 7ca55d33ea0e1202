"""Conversations with an engine that has a host tier, and what each of their positions could see."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from vllm import SamplingParams

from memdecay_adapters.engine import HostTier, MemDecayEngine, Recall
from memdecay_agents import RequestHints
from memdecay_agents.ledger import LedgerEntry
from memdecay_agents.recall import RetrievalHead
from memdecay_agents.spans import Span
from tests.engine import small_vllm
from tests.engine.oracle import logprob_distance
from tests.engine.prompts import ids

PAGE, MAX_DISTANCE, BUDGET = 16, 2e-4, 160
VLLM = {**small_vllm.VLLM, "max_num_batched_tokens": 64, "kv_cache_memory_bytes": 2**24}
FIRST_LAYER = (RetrievalHead(0, 0), RetrievalHead(0, 1))
TIER = HostTier(max_bytes=2**26, checksum=True, recall=Recall(max_pages=2, query_tokens=8, rerun=24, heads=FIRST_LAYER))


def open_engine(model: str, tier: HostTier | None, **engine_args: object) -> MemDecayEngine:
    return MemDecayEngine(
        model, config=small_vllm.CONFIG, engine_args={**VLLM, **engine_args}, host_tier=tier, check_integrity=True
    )


def hints(tokens: int, thread: str, cut: int, marked: int | None = None, **fields: object) -> RequestHints:
    spans = [Span(0, 16, "system"), Span(16, cut, "tool_out"), Span(cut, tokens, "user")]
    if marked is not None:  # one page of the tool's answer has a region of its own
        start, end = marked * PAGE, min((marked + 1) * PAGE, cut)
        spans[1:2] = [Span(16, start, "tool_out"), Span(start, end, "retrieval"), Span(end, cut, "tool_out")]
        spans = [span for span in spans if span.start < span.end]
    return RequestHints(session=thread, agent="a", budget_tokens=BUDGET, spans=tuple(spans), **fields)


def sampling(new_tokens: int = 4, **fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": new_tokens, "ignore_eos": True, "logprobs": 20, **fields})


class Talk:
    """One conversation, and what each of its positions could see."""

    def __init__(self, engine: MemDecayEngine, thread: str, seed: int, first_tokens: int = 300) -> None:
        self.engine, self.thread, self.seed = engine, thread, seed
        self.tokens = ids(first_tokens, seed)
        self.turns = 0
        self.repairs: list[tuple[int, int]] = []
        """Of each repair: how many moves there were before it, and the token from which all was computed again."""

    def turn(self, params: SamplingParams | None = None, question: int = 40, **fields: object):
        if self.turns:
            self.tokens = [*self.tokens, *ids(question, self.seed + 50 + self.turns)]
        self.turns += 1
        self.prompt = list(self.tokens)
        request_hints = hints(len(self.prompt), self.thread, 200, **fields)
        self.result = self.engine.generate(self.prompt, params or sampling(), request_hints)
        self.tokens = [*self.prompt, *self.result.token_ids]
        return self.result

    def repair(self, **fields: object):
        """Repair the session; None if there was nothing to do."""
        before = len(self.moves)
        done = self.engine.repair(self.thread, **fields)
        if done:
            self.repairs.append((before, done[0].continued_tokens))
        return done[0] if done else None

    @property
    def moves(self):
        return self.engine.ledger().moves(self.result.retention.session)

    def hidden(self, moves: Sequence[LedgerEntry] | None = None) -> torch.Tensor:
        """What no query may see: pages that are gone, from the token on that was computed without them."""
        length = len(self.tokens) - 1
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        moves = self.moves if moves is None else moves
        for number, move in enumerate(moves):
            for _, first in (repair for repair in self.repairs if repair[0] == number):
                hidden[first:] = False  # everything is there while it is computed again
            mine = [other for other in moves[number:] if other.request_id == move.request_id]
            after = [other.computed_tokens for other in mine if other.parts.get("evidence")]
            first = min([move.computed_tokens, *after])  # what is computed again sees what left while it was first
            hidden[first:, move.token_start : move.token_end] = move.reason != "swapped_in"
        return hidden | torch.ones(length, length, dtype=torch.bool).triu(1)

    def distance(self, oracle, every_tokens: int | None = None) -> float:
        rows, prompt = oracle.logprobs_seeing(self.tokens[:-1], self.hidden()), len(self.prompt)
        moves, mine = self.moves, self.result.retention.request_id
        swaps = {
            move.computed_tokens: number
            for number, move in reversed(list(enumerate(moves)))
            if move.request_id == mine and move.reason.startswith("swapped") and move.computed_tokens >= prompt
        }
        for first, number in swaps.items():  # what was said before a swap was said without it, all but the last token
            assert every_tokens is not None
            end = prompt + ((first - prompt) // every_tokens + 1) * every_tokens
            before = oracle.logprobs_seeing(self.tokens[:-1], self.hidden(moves[:number]))
            rows[first : end - 1] = before[first : end - 1]
        return logprob_distance(rows, prompt, self.result)


def serve(engine: MemDecayEngine):
    """Three turns; tokens and recalled pages of each, and the ledger as text."""
    talk, found = Talk(engine, "t", seed=5), []
    for _ in range(3):
        result = talk.turn()
        found.append((result.token_ids, result.retention.recalled_pages))
    text = [json.dumps({**entry.model_dump(mode="json"), "request_id": ""}) for entry in talk.moves]
    return found, text
