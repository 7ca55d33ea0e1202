"""Ways to ask for facts of a made-up trace: in the words of their sentences, in other words, several at once."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal, NamedTuple, get_args

from memdecay_agents.evaluation.traces import Question, TokenFact

Asking = Literal["verbatim", "paraphrased", "several", "chat"]
ASKINGS: tuple[Asking, ...] = get_args(Asking)
"""``chat``: the question of a trace file, as a user's message; only whether its pages were there can be told."""

_PARAPHRASES = (
    "\nOne more thing to write down: the {attribute}, according to everything said so far, is",
    "\nIn short, when it comes to the {attribute}, the answer is",
    "\nSomebody asks about the {attribute}. It should be",
)
"""Held out: no parameter was chosen by them."""
_AT_ONCE = 3


class AskedFact(NamedTuple):
    """One fact and how it is asked for."""

    fact: TokenFact
    question: Question
    """Its stem is the whole question of the turn."""
    answered: str = ""
    """What the agent has answered before the value of this fact is due: earlier values of the same question."""


def asked_facts(facts: Sequence[TokenFact], asking: Asking, seed: str) -> list[AskedFact]:
    """The questions of one way of asking; facts without a question, or without an attribute where one is needed, are
    left out.

    Args:
        facts: of one trace.
        asking: not ``chat``, which needs a chat template.
        seed: the same seed gives the same words and groups.
    """
    with_values = [(fact, fact.question) for fact in facts if fact.question is not None]
    if asking == "verbatim":
        return [AskedFact(fact, question) for fact, question in with_values]
    named = [(fact, question) for fact, question in with_values if question.attribute]
    if asking == "paraphrased":
        return [AskedFact(fact, _reworded(question, Random(f"{seed}/{fact.id}"))) for fact, question in named]
    if asking == "several":
        unpinned = [pair for pair in named if pair[0].region != "system"]
        Random(seed).shuffle(unpinned)
        groups = [unpinned[at : at + _AT_ONCE] for at in range(0, len(unpinned), _AT_ONCE)]
        return [asked for group in groups if len(group) > 1 for asked in _at_once(group)]
    return []


def turned(attribute: str) -> str:
    """ "team mascot" as "mascot of the team"; what cannot be turned stays."""
    words = attribute.split(" ")
    if len(words) < 2 or "of" in words or "'" in attribute:
        return attribute
    return f"{words[-1]} of the {' '.join(words[:-1])}"


def _reworded(question: Question, draw: Random) -> Question:
    stem = draw.choice(_PARAPHRASES).format(attribute=turned(question.attribute))
    return Question(stem, question.candidates, question.attribute)


def _at_once(group: Sequence[tuple[TokenFact, Question]]) -> list[AskedFact]:
    names = [f"the {question.attribute}" for _, question in group]
    wanted = f"{', '.join(names[:-1])} and {names[-1]}"
    stem = f"\nNote: {wanted[:1].upper()}{wanted[1:]} are needed. The {group[0][1].attribute} is"
    made, answered = [], ""
    for number, (fact, question) in enumerate(group):
        made.append(AskedFact(fact, Question(stem, question.candidates, question.attribute), answered))
        if number + 1 < len(group):
            answered += f" {question.candidates[0]}. The {group[number + 1][1].attribute} is"
    return made
