"""An engine with nothing to do repairs its sessions by itself."""

from __future__ import annotations

import time

import pytest

from memdecay_adapters.engine import Repair
from memdecay_adapters.engine.engine_repair import REPAIR_ID
from tests.engine.counting import counted
from tests.engine.tier_talks import MAX_DISTANCE, TIER, Talk, open_engine

pytestmark = pytest.mark.engine

LAST = 96


def test_an_engine_with_nothing_to_do_repairs_by_itself(engine_house, random_llama_path, random_oracle):
    engine_house.close()
    repaired = ("memdecay_recalls_total", "repair", "swapped")
    tier = TIER.model_copy(update={"repair": Repair(last_tokens=LAST, idle_seconds=0.05)})
    with open_engine(random_llama_path, tier) as engine:
        talk = Talk(engine, "t", seed=11)
        for _ in range(3):
            talk.turn()
            before, expected = len(talk.moves), counted(engine, *repaired) + 1
            end = time.monotonic() + 60
            while counted(engine, *repaired) < expected and time.monotonic() < end:
                time.sleep(0.02)
            back = [move for move in talk.moves[before:] if move.reason == "swapped_in"]
            assert {move.request_id.startswith(REPAIR_ID) for move in back} == {True}
            talk.repairs.append((before, min(move.computed_tokens for move in back)))
        talk.turn()
        assert talk.distance(random_oracle) <= MAX_DISTANCE
        time.sleep(0.3)
        assert counted(engine, *repaired) <= 4, "each turn is repaired once"


def test_a_repair_that_cannot_begin_stops_no_engine(engine_house, random_llama_path, caplog):
    engine_house.close()
    tier = TIER.model_copy(update={"repair": Repair(last_tokens=LAST, idle_seconds=0.0)})
    with open_engine(random_llama_path, tier) as engine:
        talk = Talk(engine, "t", seed=12)

        def refuse(llm, _):
            given = llm.add_request

            def add_request(request_id, *rest, **named):
                if request_id.startswith(REPAIR_ID):
                    raise ValueError("no")
                return given(request_id, *rest, **named)

            llm.add_request = add_request

        engine.run_on_engine_thread(refuse)
        for _ in range(3):
            talk.turn()
            end = time.monotonic() + 30
            while caplog.text.count("not repaired: no") < talk.turns and time.monotonic() < end:
                time.sleep(0.02)
        assert caplog.text.count("not repaired: no") == 3, "once a turn"
        assert not engine.closed
