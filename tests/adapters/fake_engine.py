"""An engine without a model: it answers with given text through real streams and keeps what it was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memdecay_adapters.engine.results import GenerationChunk, GenerationResult, RetentionSummary
from memdecay_adapters.engine.stream import RequestStream
from memdecay_agents import MemDecayConfig
from memdecay_agents.hints import RequestHints

Answer = Callable[[RequestHints], Sequence[str]]


class FakeEngine:
    """Answers every request with the pieces that ``answer`` gives; `hang` requests never end by themselves."""

    model_name = "fake"
    max_model_len = 512
    reasoning_parser = ""

    def __init__(
        self, tokenizer: Any, *pieces: str, finish: str = "stop", config: MemDecayConfig | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.config = config or MemDecayConfig()
        self.pieces = pieces or ("Hello", " there")
        self.finish = finish
        self.hang = False
        self.requests: list[tuple[list[int], Any, RequestHints]] = []
        self.aborted: list[str] = []

    def submit(self, prompt_token_ids: list[int], sampling: Any, hints: RequestHints) -> RequestStream:
        hints.check(len(prompt_token_ids), self.config)
        self.requests.append((prompt_token_ids, sampling, hints))
        stream = RequestStream(f"fake-{len(self.requests)}", self.aborted.append)
        for number, piece in enumerate(self.pieces):
            stream.put(GenerationChunk(piece, (number,)))
        if not self.hang:
            stream.finish(self._result(prompt_token_ids, hints))
        return stream

    @property
    def hints(self) -> RequestHints:
        """Hints of the latest request."""
        return self.requests[-1][2]

    @property
    def sampling(self) -> Any:
        """Sampling parameters of the latest request."""
        return self.requests[-1][1]

    @property
    def prompt(self) -> str:
        """Text of the latest prompt."""
        return str(self.tokenizer.decode(self.requests[-1][0]))

    def _result(self, prompt: list[int], hints: RequestHints) -> GenerationResult:
        return GenerationResult(
            request_id="fake",
            text="".join(self.pieces),
            token_ids=tuple(range(len(self.pieces))),
            finish_reason=self.finish,
            stop_reason=None,
            prompt_tokens=len(prompt),
            cached_tokens=16,
            wall_seconds=0.5,
            time_to_first_token_seconds=0.1,
            retention=RetentionSummary(
                session=hints.session_id.key(), request_id="fake", agent=hints.agent, turn=hints.turn,
                policy="memdecay",
                page_size_tokens=16, budget_pages=None, guaranteed_pages=None, budget_bound=False, continued_tokens=0,
                rewound_tokens=0, divergent_region=None, pages_held=1, pages_total=1,
                peak_pages_prefill=1,
                peak_pages_decode=1, evictions=0, shortfall_pages=0,
            ),
        )  # fmt: skip
