"""A tuning generator of another domain: a travelling exhibition, the same kind of facts in other words."""

from __future__ import annotations

from memdecay_agents.evaluation.synthetic.domain import Domain

REWORDED = Domain(
    attributes={
        "colour": ("wall paint", "ribbon shade", "carpet shade"),
        "person": ("head curator", "press contact", "tour guide", "lender"),
        "city": ("opening venue", "second stop", "storage town"),
        "animal": ("brochure animal", "sculpture motif", "gallery nickname"),
        "month": ("closing month", "shipping month"),
        "instrument": ("opening act", "audio guide sound"),
        "fruit": ("still life subject", "buffet fruit"),
        "planet": ("dome projection", "meeting room"),
        "metal": ("frame metal", "medal metal"),
        "drink": ("welcome drink", "sponsor drink"),
        "sport": ("photo theme", "charity event"),
        "material": ("banner fabric", "crate padding"),
        "language": ("catalogue language", "second caption language"),
        "weekday": ("free entry day", "school visit day"),
        "tool": ("mounting tool", "missing tool"),
        "tree": ("courtyard tree", "bench timber"),
    },
    sentences={
        "system": (
            "Speak politely and give prices with tax.",
            "Visitors under {n} need an adult in the {place}.",
            "Escalate insurance questions above {m} euros to a person.",
            "Avoid naming lenders who wish to stay private.",
            "Mention the {place} only when it is open.",
        ),
        "user": (
            "Could you arrange {n} {thing} for the {place}?",
            "My colleagues arrive late and want to see the {thing} first.",
            "The budget for the {place} was cut by {m}.",
            "After that we {verb} the {thing} together.",
            "It rained into the {place} twice this spring.",
        ),
        "plan": (
            "1) {verb} the {thing} before noon.",
            "2) call the {place} and confirm {n} seats.",
            "3) send the {m} euro invoice.",
            "4) agree on a date with the {place}.",
            "5) note what is still open.",
        ),
        "tool_in": (
            "search {thing} near the {place}, page {n}",
            "price below {m}, newest first",
            "only confirmed {thing}, no drafts",
            "group by room and show {n} rows",
        ),
        "tool_out": (
            "Room {n}: {m} visitors, {thing} in order.",
            "Ticket batch {m} printed for the {place}.",
            "Climate in the {place}: {n} percent humidity.",
            "Transport {m} with {thing} left on time.",
            "Query returned {n} matches for {thing}.",
        ),
        "retrieval": (
            "According to the lending contract, {thing} may travel {n} times a year.",
            "Restorers recommend {n} degrees for the {place} and no flash.",
            "A review from {m} days ago praised the {thing}.",
            "Annex {n} lists who may {verb} the {thing}.",
            "The floor of the {place} carries {m} kilos per square metre.",
        ),
        "scratchpad": (
            "Nothing here contradicts the quote of {m} euros.",
            "It seems the {place} has {n} seats too few.",
            "Better {verb} the {thing} after the call.",
            "So far everything fits into {n} boxes.",
            "Let me sort out the open points.",
        ),
    },
    things=("paintings", "tickets", "vases", "posters", "showcases", "sketches", "audio guides", "maps", "masks"),
    places=("main gallery", "annex", "museum shop", "courtyard", "archive", "lecture hall", "foyer"),
    verbs=("hang", "ship", "insure", "photograph", "unpack", "catalogue"),
    tools=("search_collection", "book_room", "ticket_report", "transport_status"),
    state_fact=(
        lambda attribute, value: f"For the {attribute} everyone agreed on {value}.",
        lambda attribute, value: f"Remember {value} as the {attribute}.",
        lambda attribute, value: f"As {attribute} we take {value} this time.",
        lambda attribute, value: f"It was {value} that got picked as {attribute}.",
    ),
    mention=("What about the {attribute} again?", "This depends on the {attribute} as well."),
)
