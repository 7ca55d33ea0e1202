"""A tuning generator of long-winded facts, each on two or three pages: a lake ferry line.

It was written when facts of more than a page turned out to be what small budgets lose.
"""

from __future__ import annotations

from memdecay_agents.evaluation.synthetic.domain import Domain

LONGWINDED = Domain(
    attributes={
        "colour": ("funnel stripe", "life vest shade", "timetable cover"),
        "person": ("relief captain", "harbour clerk", "pier musician's aunt", "keeper of the lamp"),
        "city": ("twin port", "shipyard town", "home of the first owner"),
        "animal": ("figurehead", "ship's pet", "badge of the old fleet"),
        "month": ("dry dock month", "fare change month"),
        "instrument": ("boarding signal", "band prize"),
        "fruit": ("kiosk special", "cargo of the last trip"),
        "planet": ("name of the small launch", "code word for fog"),
        "metal": ("anchor chain", "ticket token"),
        "drink": ("deck bar offer", "captain's order"),
        "sport": ("island fair contest", "staff league"),
        "material": ("sun sail", "seat cover"),
        "language": ("second announcement", "radio course"),
        "weekday": ("mail boat day", "hull washing day"),
        "tool": ("item under the bench", "thing owed to the smith"),
        "tree": ("landing shade", "rail of the upper deck"),
    },
    sentences={
        "system": (
            "Quote fares only from the list of the season.",
            "Groups above {m} heads go to the office by the {place}.",
            "Give times by the clock of the {place}.",
            "Lost property is kept for {n} weeks, not longer.",
            "Bad weather decisions are the captain's alone.",
        ),
        "user": (
            "There is a queue of {m} at the {place} already.",
            "Do we still {verb} the {thing} on this run?",
            "Two of the {thing} fell into the lake near the {place}.",
            "The {n} o'clock boat was late once more.",
            "My sister works at the {place} and says hello.",
        ),
        "plan": (
            "Task {n}: {verb} the {thing} and tick them off.",
            "Task {n}: telephone the {place} about the tide.",
            "Task {n}: add {m} to the passenger count.",
            "Task {n}: keep the next departure in mind.",
            "Task {n}: hand the rest to the night shift.",
        ),
        "tool_in": (
            "departures from the {place} after {n}, all boats",
            "level at the {place}, last {n} readings",
            "passengers on trip {m}, children apart",
            "open orders for {thing}, oldest first",
        ),
        "tool_out": (
            "trip {m}: {n} minutes late, all aboard.",
            "level {m} cm at the {place}, falling.",
            "{thing}: {n} ordered, none delivered.",
            "gate {n}: closed, boat {m} at anchor.",
            "fuel {m} litres, enough for {n} crossings.",
        ),
        "retrieval": (
            "Rule {n} of the lake board forbids {thing} on the lower deck.",
            "In {n} years of service the {place} was flooded twice.",
            "Passengers may {verb} {thing} only while the boat lies at the {place}.",
            "Table {m} gives the depth at every buoy.",
            "The concession expires {n} years after the first trip.",
        ),
        "scratchpad": (
            "Boat {m} could take over if the tide is kind.",
            "Nobody has asked the {place} yet.",
            "I would rather {verb} the {thing} this evening.",
            "That explains {n} of the missing heads.",
            "Slowly, one pier at a time.",
        ),
    },
    things=("ropes", "tickets", "buoys", "deck chairs", "bicycles", "lanterns", "fenders", "parcels", "flags"),
    places=("west pier", "ticket booth", "boathouse", "island landing", "fuel jetty", "lighthouse", "car ramp"),
    verbs=("tie up", "repaint", "unload", "stow", "replace", "hand out"),
    tools=("departures", "lake_level", "trip_report", "order_status"),
    state_fact=(
        lambda attribute, value: (
            f"It took three meetings until {value} was written down as the {attribute} and everybody could go home."
        ),
        lambda attribute, value: (
            f"If one of the new people wonders about the {attribute}, your answer should be {value}."
        ),
        lambda attribute, value: f"As for the {attribute}, these days you can safely rely on {value} and nothing else.",
        lambda attribute, value: f"Whatever the poster says, {value} is what we have had for years as the {attribute}.",
    ),
    mention=("That brings me back to the {attribute}.", "Has anybody thought of the {attribute}?"),
)
