"""The second held-out generator: an animal clinic, facts said briefly and at length. Never used for tuning.

It was written when ``paraphrased`` had been looked at once, so that a later choice could be shown on something new.
"""

from __future__ import annotations

from memdecay_agents.evaluation.synthetic.domain import Domain

RETOLD = Domain(
    attributes={
        "colour": ("collar tag colour", "file sticker", "cage card shade"),
        "person": ("night nurse", "visiting surgeon", "kennel helper", "owner of the old mare"),
        "city": ("referral town", "blood bank city", "vaccine supplier's city"),
        "animal": ("mascot on the door", "patient in box four", "training dummy"),
        "month": ("next booster month", "boiler inspection month"),
        "instrument": ("doorbell sound", "waiting room music"),
        "fruit": ("taste of the wormer", "treat for rabbits"),
        "planet": ("name of the x-ray room", "wifi name"),
        "metal": ("implant material", "tray metal"),
        "drink": ("drink after surgery", "staff kitchen offer"),
        "sport": ("poster behind the scale", "team outing"),
        "material": ("bandage base", "kennel blanket"),
        "language": ("leaflet language", "language of the new intern"),
        "weekday": ("dental day", "late opening day"),
        "tool": ("thing lost in the barn", "tool for hoof care"),
        "tree": ("tree beside the ramp", "plank of the counter"),
    },
    sentences={
        "system": (
            "Never name a dose without the weight of the animal.",
            "Fees above {m} need the consent of the owner.",
            "Calls after {n} past nine go to the emergency line.",
            "Use plain words and no foreign names.",
            "Ask before anything in the {place} is moved.",
        ),
        "user": (
            "The {thing} in the {place} smell odd today.",
            "We expect {n} patients and two of them bite.",
            "Would you {verb} the {thing} after the next visit?",
            "Mrs. Long calls about invoice {m} again.",
            "I am in the {place} until half past.",
        ),
        "plan": (
            "a) {verb} the {thing} of the morning.",
            "b) ring the {place}, extension {n}.",
            "c) see whether chart {m} is complete.",
            "d) order what is missing.",
            "e) only then release the patient.",
        ),
        "tool_in": (
            "open charts of the {place} newer than {n} days",
            "sum of {thing} used, lot {m}",
            "free slots in the {place} from {n} on",
            "lab values below {m} sorted by patient",
        ),
        "tool_out": (
            "chart {m}: weight {n} kg, no fever.",
            "{thing}: {n} left, minimum {n}, reorder {m}.",
            "{place}: occupied, cleaned {n} minutes ago.",
            "lab {m}: sample received, result in {n} hours.",
            "slot {n}: free, slot {m}: on hold.",
        ),
        "retrieval": (
            "The guideline advises {n} millilitres per kilo and a pause of {n} hours.",
            "{thing} must be kept away from the {place} as of paragraph {n}.",
            "A study of {m} dogs found no difference between the two.",
            "Who wants to {verb} {thing} needs the course of level {n}.",
            "Keep receipts for {n} years, says the chamber.",
        ),
        "scratchpad": (
            "Chart {m} does not fit what was said on the phone.",
            "The {place} is closer, so start there.",
            "Perhaps {verb} the {thing} together with the others.",
            "{n} hours should be enough.",
            "No need to wake anybody.",
        ),
    },
    things=("syringes", "scales", "leashes", "gloves", "vials", "towels", "carriers", "charts", "muzzles"),
    places=("quarantine", "barn", "surgery", "reception", "kennel wing", "pharmacy", "courtyard stall"),
    verbs=("sterilise", "weigh", "refill", "sort", "check", "photograph"),
    tools=("open_chart", "stock_of", "find_slot", "lab_results"),
    state_fact=(
        lambda attribute, value: f"Note on the {attribute}: {value}.",
        lambda attribute, value: f"{value} is the {attribute} now.",
        lambda attribute, value: f"When somebody asks for the {attribute}, tell them that it is {value}.",
        lambda attribute, value: f"They changed the {attribute} last week and it has been {value} ever since.",
        lambda attribute, value: f"The {attribute}, as far as I know, is {value}.",
    ),
    mention=("She asked about the {attribute}.", "Mind the {attribute} as well."),
)
