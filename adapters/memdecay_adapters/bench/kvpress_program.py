"""The transformers + kvpress side of ``memdecay bench serve``, run by an interpreter that has both and not us.

Usage: ``python kvpress_program.py '{"model": ..., "tokens": ..., ...}'``; the last line printed is JSON.

A press compresses the cache once, behind the prompt. So the whole prompt is prefilled in full, once, and its cache is
repeated for the batch, which decodes on what is left of it, beside the same batch on the whole cache, taking turns.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from importlib import metadata
from typing import Any


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Measure.

    Args:
        asked: model (a folder), tokens (of a prompt), budget_tokens, batch, steps (a sample), pairs, seed, press.

    Returns:
        Seconds of one prompt's prefill, and of the samples of the batch's decode steps, with the press and without.
    """
    import kvpress
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
    model = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.bfloat16).eval()
    draw = random.Random(asked["seed"])
    ids = torch.tensor([[draw.randrange(100, 20000) for _ in range(asked["tokens"])]])
    press = getattr(kvpress, asked["press"])(compression_ratio=1 - asked["budget_tokens"] / asked["tokens"])
    caches, prefill = {}, {}
    with torch.inference_mode():
        for name in ("press", "full"):
            caches[name] = DynamicCache(config=model.config)
            before = time.perf_counter()
            if name == "press":
                with press(model):
                    model.model(ids, past_key_values=caches[name])
            else:
                model.model(ids, past_key_values=caches[name])
            prefill[name] = time.perf_counter() - before
            caches[name].batch_repeat_interleave(asked["batch"])
        held = {name: caches[name].get_seq_length() for name in caches}
        token, position = ids[:, -1:].repeat(asked["batch"], 1), asked["tokens"]
        samples: dict[str, list[float]] = {name: [] for name in caches}
        for number in range(asked["pairs"] + 1):
            for name in ("press", "full") if number % 2 else ("full", "press"):
                before = time.perf_counter()
                for step in range(asked["steps"]):
                    positions = torch.full((asked["batch"], 1), position + step)
                    model(token, past_key_values=caches[name], position_ids=positions).logits.argmax(-1)
                if number:  # the first one warms up
                    samples[name].append((time.perf_counter() - before) / asked["steps"])
            position += asked["steps"]
    return {
        "press": asked["press"],
        "held_tokens": held,
        "prefill_seconds": {name: round(seconds, 3) for name, seconds in prefill.items()},
        "samples": samples,
        "versions": {name: metadata.version(name) for name in ("kvpress", "transformers", "torch")},
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
