"""Questions as token ids: one step decides among eight first tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memdecay_agents.errors import ModelError
from memdecay_agents.evaluation.synthetic.builder import CHOICES
from memdecay_agents.evaluation.traces import Question


@dataclass(frozen=True)
class TokenQuestion:
    """A question for one tokenizer."""

    stem_ids: tuple[int, ...]
    candidates: tuple[int, ...]
    """First tokens of eight values, all different; the right one first."""

    def chosen(self, logprobs: Mapping[int, Any]) -> int:
        """The candidate with the highest log-probability (vLLM ``Logprob`` by token id)."""
        return max(self.candidates, key=lambda token: logprobs[token].logprob)


def chat_turn(text: str, tokenizer: Any) -> str:
    """A user's message behind a conversation, up to where the agent answers, as the model's template writes it.

    Args:
        text: the message.
        tokenizer: of transformers, with a chat template.
    """
    before = [{"role": "user", "content": "-"}, {"role": "assistant", "content": "-"}]
    start: str = tokenizer.apply_chat_template(before, tokenize=False)
    asked = [*before, {"role": "user", "content": text}]
    whole: str = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    return whole.removeprefix(start) if whole.startswith(start) else f"\n{text}\n"


def token_question(question: Question, tokenizer: Any) -> TokenQuestion:
    """Tokenise a question.

    Raises:
        ModelError: the tokenizer tells fewer than eight values apart by their first token.
    """
    first: dict[int, None] = {}
    for value in question.candidates:
        first.setdefault(tokenizer(f" {value}", add_special_tokens=False)["input_ids"][0])
    if len(first) < CHOICES:
        raise ModelError(
            where=f"question {question.stem!r}",
            rule=f"the tokenizer tells only {len(first)} of its values apart by their first token",
            remedy="Evaluate this model on other traces, or add values to memdecay_agents.evaluation.synthetic.values.",
        )
    stem = tuple(tokenizer(question.stem, add_special_tokens=False)["input_ids"])
    return TokenQuestion(stem, tuple(first)[:CHOICES])
