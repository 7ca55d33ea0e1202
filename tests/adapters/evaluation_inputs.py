"""A configuration, a trace file of one's own, and a recorder that a random model can use, for tests of evaluations."""

import dataclasses
import json
from pathlib import Path

from memdecay_adapters.evaluation.recorder import AttentionRecorder
from memdecay_agents import MemDecayConfig

CONFIG = MemDecayConfig(page_size_tokens=16)


def own_trace_file(path: Path, n: int = 4) -> Path:
    rows = []
    for number in range(n):
        messages = [{"role": "system", "content": "You keep the books of a small warehouse and answer briefly."}]
        for order in range(5):
            value = 70000 + 131 * number + 17 * order
            call = {"id": f"a{order}", "name": "place_order", "args": {"amount": order + 3, "item": "drums"}}
            text = json.dumps({"order_id": value, "status": "open", "note": "to be picked up at the north gate"})
            check = {"id": f"b{order}", "name": "check_order", "args": {"order_id": value}}
            messages += [
                {"role": "user", "content": f"Please order {order + 3} more drums and see that it is noted."},
                {"role": "assistant", "content": "I place the order first.", "tool_calls": [call]},
                {"role": "tool", "content": text, "tool_call_id": f"a{order}"},
                {"role": "assistant", "content": "", "tool_calls": [check]},
                {"role": "tool", "content": '{"status": "open"}', "tool_call_id": f"b{order}"},
            ]
        rows.append({"id": f"t{number}", "messages": messages})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def small_vocabulary(monkeypatch):
    """The random model knows 1,024 ids, its tokenizer more."""
    whole = AttentionRecorder._run

    def run(self, trace):
        folded = dataclasses.replace(trace, token_ids=trace.token_ids % 1024)
        return dataclasses.replace(whole(self, folded), token_ids=trace.token_ids)

    monkeypatch.setattr(AttentionRecorder, "_run", run)
