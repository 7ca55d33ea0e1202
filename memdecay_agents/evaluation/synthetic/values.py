"""Pools of values that a fact can have; a question's wrong answers come from the pool of its right one."""

from __future__ import annotations

POOLS: dict[str, tuple[str, ...]] = {
    kind: tuple(words.split())
    for kind, words in {
        "colour": "amber silver purple violet green yellow black white blue red brown pink gold gray crimson",
        "person": "Martin Peter David Thomas Robert James John Paul Mark George Anna Maria Laura Helen Alice",
        "city": "Berlin Paris London Rome Madrid Vienna Boston Chicago Tokyo Dublin Oslo Lisbon Prague Milan Seattle",
        "animal": "horse tiger lion wolf bear eagle snake rabbit whale dog fox owl deer goat duck",
        "month": "March June July August October December January April May November February September",
        "instrument": "piano guitar violin drum trumpet flute bass organ harp bell cello horn",
        "fruit": "apple orange banana lemon grape cherry peach pear melon plum mango lime",
        "planet": "Mars Venus Saturn Jupiter Mercury Earth Neptune Pluto Sun Moon",
        "metal": "iron copper zinc tin lead steel nickel bronze brass titanium aluminum platinum",
        "drink": "coffee tea water milk juice beer wine soda cider cocoa",
        "sport": "tennis football hockey golf rugby cricket boxing baseball basketball swimming",
        "material": "cotton leather wool silk paper glass plastic rubber stone wood",
        "language": "French German Spanish Italian Greek Latin Arabic Russian Chinese Japanese Dutch Polish",
        "weekday": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday tomorrow yesterday tonight",
        "tool": "hammer knife saw drill wrench axe shovel broom ladder rope",
        "tree": "oak pine maple birch elm ash willow cedar palm beech",
    }.items()
}
