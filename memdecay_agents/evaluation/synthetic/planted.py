"""The tuning generators: a warehouse, facts in one form as published ("The {attribute} is {value}."), or in several."""

from __future__ import annotations

from dataclasses import replace

from memdecay_agents.evaluation.synthetic.domain import Domain

PLANTED = Domain(
    attributes={
        "colour": ("badge colour", "door colour", "folder colour", "strap colour"),
        "person": ("shift supervisor", "night guard", "safety officer", "spare driver"),
        "city": ("meeting city", "depot city", "return city", "backup city"),
        "animal": ("radio call sign", "team mascot", "spare animal tag", "crate stamp"),
        "month": ("audit month", "backup month", "renewal month"),
        "instrument": ("alarm instrument", "fallback instrument", "chime sound"),
        "fruit": ("gate fruit", "bay label", "test fruit"),
        "planet": ("sensor planet", "server name"),
        "metal": ("key metal", "plate metal", "pipe metal"),
        "drink": ("break room drink", "sample drink"),
        "sport": ("team sport", "poster sport"),
        "material": ("cover material", "lining material"),
        "language": ("manual language", "label language", "form language"),
        "weekday": ("pickup day", "cleaning day"),
        "tool": ("shelf tool", "locker tool"),
        "tree": ("yard tree", "logo tree"),
    },
    sentences={
        "system": (
            "Name the {place} you used in every answer.",
            "Never promise more than {n} {thing} at once.",
            "Keep answers to one sentence unless you are asked for more.",
            "Do not {verb} anything in the {place} without a reason.",
            "Work from tool results only and do not guess amounts.",
            "If a log is older than {n} hours, say so.",
        ),
        "user": (
            "Please see whether the {thing} in the {place} were counted today.",
            "The driver comes at {n} past and needs {m} {thing}.",
            "Somebody left {n} {thing} near the {place} again.",
            "I would like a short list and nothing else.",
            "Then {verb} the {thing} if there is time.",
            "We had trouble with the {thing} last week.",
        ),
        "plan": (
            "Step: {verb} the {thing} in the {place}.",
            "Step: compare the count with the order of {m}.",
            "Step: report every gap larger than {n}.",
            "Step: ask for the log of the {place}.",
            "Step: wait for the answer before the next step.",
        ),
        "tool_in": (
            "look up {thing} in the {place} with at least {n} left",
            "limit {m} rows sorted by age",
            "include reserved {thing} and skip empty shelves",
            "filter by the {place} between {n} and {m}",
        ),
        "tool_out": (
            "{place}: {m} {thing} in stock, {n} reserved.",
            "{n}:15 pump {n}: pressure normal, {m} litres.",
            "{n}:40 crane: load shifted in the {place}.",
            "row {m}: {thing}, age {n} days, checked.",
            "{thing}: {m} in, {n} out, no finding.",
        ),
        "retrieval": (
            "The handbook says that {thing} are stored in the {place} for up to {n} days.",
            "Loads above {m} kilos need two people and a second check of the {place}.",
            "Chapter {n} describes how to {verb} {thing} after a fault.",
            "An older version of this page named the {place} instead.",
            "Damaged {thing} are written off after {n} weeks.",
        ),
        "scratchpad": (
            "The count of {m} looks plausible for the {place}.",
            "First I should {verb} the {thing} and then look at the log.",
            "That leaves {n} {thing} unexplained.",
            "Maybe the {place} was counted twice.",
            "I will keep this short.",
        ),
    },
    things=("pallets", "drums", "crates", "cables", "valves", "filters", "gloves", "bolts", "lamps", "hoses"),
    places=("north hall", "south hall", "east hall", "cold store", "loading bay", "upper shelf", "repair corner"),
    verbs=("check", "move", "count", "inspect", "label", "repack", "order"),
    tools=("stock_report", "read_log", "find_orders", "list_shelves"),
    state_fact=(lambda attribute, value: f"The {attribute} is {value}.",),
    mention=("I still need the {attribute} for this.", "Do not forget the {attribute} in the end."),
)

VARIED = replace(
    PLANTED,
    state_fact=(
        lambda attribute, value: f"We settled on {value} for the {attribute}.",
        lambda attribute, value: f"{attribute.capitalize()}: {value}.",
        lambda attribute, value: f"Since last week {value} has been the {attribute}.",
        lambda attribute, value: f"They want the {attribute} to be {value}.",
    ),
)
"""The same with facts in four other forms."""
