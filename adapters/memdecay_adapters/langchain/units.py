"""What one message says about another.

A newer message supersedes an older one: because a tag says so, because both are plans of one author
(``RegionRules.newest_of_regions``), or because a tool was called again (``newest_of_tools``, ``newest_of_calls``).
Superseded text stays in the prompt; its cache pages go first, unless they are pinned.

A tool call and its result are one unit for this and for pins: what is said of one holds for the other.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from memdecay_adapters.langchain.region_rules import RegionRules
from memdecay_adapters.langchain.regions import MessageParts, Part
from memdecay_agents.spans import SpanFlag


@dataclass(slots=True, eq=False)
class Unit:
    """A tool call and its result, by their places in the conversation."""

    call_id: str
    name: str
    arguments: Any
    caller: int
    """Number of the message that calls."""
    position: int
    """Place among that message's calls."""
    result: int | None = None
    """Number of the message with the result; None: there is none (yet)."""


def settle_units(
    messages: Sequence[BaseMessage], parts: Sequence[MessageParts], rules: RegionRules
) -> list[MessageParts]:
    """Return the parts with the flags that follow from the other messages; regions never change.

    Args:
        messages: the conversation.
        parts: of each message, as `infer_parts` gives them.
        rules: which repetitions supersede.
    """
    board = _Board(messages, parts)
    _by_tags(board)
    _by_region(board, rules.newest_of_regions)
    if rules.newest_of_tools or rules.newest_of_calls:
        _by_tool(board, rules)
    _pins(board)
    return board.settled()


class _Board:
    """The conversation's units, and the flags that are added to its messages."""

    def __init__(self, messages: Sequence[BaseMessage], parts: Sequence[MessageParts]) -> None:
        self.messages, self.parts = messages, parts
        self.units = _units(messages)
        self.unit_of_result = {unit.result: unit for unit in self.units if unit.result is not None}
        self.units_of_caller: dict[int, list[Unit]] = {}
        for unit in self.units:
            self.units_of_caller.setdefault(unit.caller, []).append(unit)
        self.whole: dict[int, SpanFlag] = {}
        self.calls: dict[tuple[int, int], SpanFlag] = {}
        self.regions: dict[int, set[str]] = {}  # superseded regions of a message that is not superseded as a whole

    def flag_message(self, number: int, flag: SpanFlag) -> None:
        """Flag a message, and what is one with it: the call of a result, the results of calls."""
        if number in self.unit_of_result:
            self.flag_unit(self.unit_of_result[number], flag)
            return
        self.whole[number] = self.whole.get(number, SpanFlag.NONE) | flag
        for unit in self.units_of_caller.get(number, ()):
            self.flag_unit(unit, flag)

    def flag_unit(self, unit: Unit, flag: SpanFlag) -> None:
        key = (unit.caller, unit.position)
        self.calls[key] = self.calls.get(key, SpanFlag.NONE) | flag
        if unit.result is not None:
            self.whole[unit.result] = self.whole.get(unit.result, SpanFlag.NONE) | flag

    def settled(self) -> list[MessageParts]:
        changed = {*self.whole, *self.regions, *(caller for caller, _ in self.calls)}
        return [self._settle(n, given) if n in changed else given for n, given in enumerate(self.parts)]

    def _settle(self, number: int, given: MessageParts) -> MessageParts:
        whole, regions = self.whole.get(number, SpanFlag.NONE), self.regions.get(number, ())

        def flagged(part: Part) -> Part:
            added = whole | (SpanFlag.SUPERSEDED if part.label.region in regions else SpanFlag.NONE)
            return part._replace(label=part.label.with_flags(added))

        return replace(
            given,
            text=tuple(flagged(part) for part in given.text),
            reasoning=tuple(part._replace(label=part.label.with_flags(whole)) for part in given.reasoning),
            calls=tuple(
                label.with_flags(self.calls.get((number, position), SpanFlag.NONE))
                for position, label in enumerate(given.calls)
            ),
            broken_calls=given.broken_calls.with_flags(whole),
            default=flagged(Part("", given.default)).label,
        )


def _units(messages: Sequence[BaseMessage]) -> list[Unit]:
    """Pair calls and results; an id that models use again belongs to its latest call."""
    units: list[Unit] = []
    latest: dict[str, Unit] = {}
    for number, message in enumerate(messages):
        if isinstance(message, AIMessage):
            for position, call in enumerate(message.tool_calls):
                unit = Unit(call["id"] or "", call["name"], call["args"], number, position)
                units.append(unit)
                if unit.call_id:
                    latest[unit.call_id] = unit
        elif isinstance(message, ToolMessage) and (found := latest.get(message.tool_call_id)) and found.result is None:
            found.result = number
    return units


def orphan_results(messages: Sequence[BaseMessage]) -> set[int]:
    """Places of results whose call does not stand before them."""
    paired = {unit.result for unit in _units(messages)}
    return {n for n, message in enumerate(messages) if isinstance(message, ToolMessage) and n not in paired}


def with_tool_names(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages; results that name no tool get the name of their call, on a copy."""
    named = list(messages)
    for unit in _units(messages):
        if unit.result is not None and not (message := named[unit.result]).name:
            named[unit.result] = message.model_copy(update={"name": unit.name})
    return named


def _by_tags(board: _Board) -> None:
    for number, given in enumerate(board.parts):
        for name in given.supersedes:
            for earlier, message in enumerate(board.messages[:number]):
                orphan = earlier not in board.unit_of_result and getattr(message, "tool_call_id", None) == name
                if message.id == name or orphan:
                    board.flag_message(earlier, SpanFlag.SUPERSEDED)
            units = [unit for unit in board.units if unit.call_id == name and unit.caller < number]
            own = board.unit_of_result.get(number)
            if others := [unit for unit in units if unit is not own]:
                board.flag_unit(others[-1], SpanFlag.SUPERSEDED)


def _by_region(board: _Board, regions: Collection[str]) -> None:
    latest: dict[tuple[str, str, str], int] = {}
    for number, (message, given) in enumerate(zip(board.messages, board.parts, strict=True)):
        written = {part.label.region for part in given.text}
        for region in written.intersection(regions):
            author = (region, message.type.removesuffix("MessageChunk").lower(), message.name or "")
            earlier = latest.get(author)
            latest[author] = number
            if earlier is None:
                continue
            if earlier in board.unit_of_result and board.parts[earlier].default.region == region:
                board.flag_message(earlier, SpanFlag.SUPERSEDED)
            else:
                board.regions.setdefault(earlier, set()).add(region)


def _by_tool(board: _Board, rules: RegionRules) -> None:
    latest: dict[tuple[str, str], Unit] = {}
    for unit in board.units:
        if unit.result is None or getattr(board.messages[unit.result], "status", None) == "error":
            continue
        if _named(unit.name, rules.newest_of_tools):
            key = (unit.name, "")
        elif _named(unit.name, rules.newest_of_calls):
            key = (unit.name, json.dumps(unit.arguments, sort_keys=True, default=str))
        else:
            continue
        if (earlier := latest.get(key)) is not None:
            board.flag_unit(earlier, SpanFlag.SUPERSEDED)
        latest[key] = unit


def _pins(board: _Board) -> None:
    for number, given in enumerate(board.parts):
        if given.default.flags & SpanFlag.PINNED:
            board.flag_message(number, SpanFlag.PINNED)


def _named(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
