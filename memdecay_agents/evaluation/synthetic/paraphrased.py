"""The held-out generator: a film shoot, the same kind of facts in words of its own. Never used for tuning."""

from __future__ import annotations

from memdecay_agents.evaluation.synthetic.domain import Domain

PARAPHRASED = Domain(
    attributes={
        "colour": ("costume colour", "gel filter", "slate marker"),
        "person": ("second director", "stunt double", "script editor", "location scout"),
        "city": ("premiere place", "night shoot town", "studio address"),
        "animal": ("trained extra", "title animal", "code name of scene nine"),
        "month": ("release month", "reshoot month"),
        "instrument": ("main theme instrument", "prop for the street musician"),
        "fruit": ("breakfast scene prop", "catering dessert"),
        "planet": ("working title", "backdrop"),
        "metal": ("sword finish", "award trophy"),
        "drink": ("hero's drink", "wrap party drink"),
        "sport": ("opening scene match", "crew tournament"),
        "material": ("curtain fabric", "mask filling"),
        "language": ("dubbing order", "accent coach topic"),
        "weekday": ("crew rest day", "test screening day"),
        "tool": ("murder weapon", "broken prop"),
        "tree": ("forest set species", "poster motif"),
    },
    sentences={
        "system": (
            "Treat contracts above {m} dollars as confidential.",
            "Answer in the order in which you were asked.",
            "Scenes in the {place} need a permit and {n} guards.",
            "When dates clash, propose two others.",
            "Leave union matters to a human.",
        ),
        "user": (
            "We lost {n} minutes in the {place} this morning.",
            "Can the {thing} be there by {n} past six?",
            "Production wants {m} shots and we have half of that.",
            "Somebody should {verb} the {thing} before lunch.",
            "The neighbours of the {place} complained about the noise.",
        ),
        "plan": (
            "First {verb} the {thing}, scene {n}.",
            "Then clear the {place} for an hour.",
            "After that compare take {n} with take {m}.",
            "Finally tell everyone who waits in the {place}.",
            "If it rains, go on with the {thing}.",
        ),
        "tool_in": (
            "schedule for the {place} between {n} and {m}",
            "list {thing} not yet returned",
            "weather around the {place}, next {n} hours",
            "costs of {thing} up to {m}, by unit",
        ),
        "tool_out": (
            "Scene {n}: {m} seconds usable, sound clean.",
            "{place} booked, deposit {m}, contact pending.",
            "Inventory: {n} {thing}, {m} on loan.",
            "Forecast {n} degrees, wind {n}, no rain.",
            "Unit {n} reports {thing} ready in the {place}.",
        ),
        "retrieval": (
            "The safety sheet allows {n} people in the {place} at a time.",
            "In the second draft the {thing} burn down after {m} frames.",
            "Insurers ask for photos of all {thing} before a stunt.",
            "Page {n} of the budget moves {m} dollars to post production.",
            "Whoever wants to {verb} the {thing} signs the list on page {n}.",
        ),
        "scratchpad": (
            "Take {n} seems to be the best so far.",
            "The {place} cannot hold all {thing}, that is clear.",
            "I could {verb} the {thing} in the break.",
            "{m} is far above what was agreed.",
            "One thing after the other.",
        ),
    },
    things=("cameras", "costumes", "lights", "wigs", "trucks", "cables", "microphones", "props", "extras", "chairs"),
    places=("harbour set", "waiting room", "old mill", "rooftop", "parking lot", "editing suite", "cantina"),
    verbs=("rig", "paint", "rehearse", "film", "replace", "record"),
    tools=("call_sheet", "weather", "inventory", "permit_status"),
    state_fact=(
        lambda attribute, value: f"It has been decided that {value} will serve as {attribute}.",
        lambda attribute, value: f"By the way, {attribute}? That would be {value}.",
        lambda attribute, value: f"Please use {value} whenever the {attribute} comes up.",
        lambda attribute, value: f"About the {attribute}, the answer was {value} in the end.",
    ),
    mention=("Nobody told her about the {attribute}.", "Check the {attribute} once more."),
)
