"""What a made-up domain consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Domain:
    """Sentences and attributes of one made-up domain."""

    attributes: Mapping[str, tuple[str, ...]]
    """Attributes by the kind of their value (the keys of ``POOLS``)."""
    sentences: Mapping[str, tuple[str, ...]]
    """Sentences without a fact by region; ``{n}``, ``{m}``, ``{thing}``, ``{place}`` and ``{verb}`` are drawn."""
    things: tuple[str, ...]
    places: tuple[str, ...]
    verbs: tuple[str, ...]
    tools: tuple[str, ...]
    state_fact: tuple[Callable[[str, str], str], ...]
    """Ways to say that an attribute has a value."""
    mention: tuple[str, ...]
    """Ways to come back to an attribute without its value; ``{attribute}`` is replaced."""

    def sentence(self, region: str, draw: Random) -> str:
        """A sentence of a region, in which no fact stands."""
        text = draw.choice(self.sentences[region])
        return text.format(
            n=draw.randint(2, 97),
            m=draw.randint(100, 980),
            thing=draw.choice(self.things),
            place=draw.choice(self.places),
            verb=draw.choice(self.verbs),
        )
