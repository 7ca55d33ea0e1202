"""Seeded sampling on a CPU for prompts of more than one chunk: the only contact with the runner's generators.

After a step that computes only a part of a prompt, vLLM 0.32's V1 runner throws the sampled token away and winds the
request's own generator back by ``set_offset``, which CPU generators do not have: the engine ends with "CPU Generator
does not use offset". Here these generators stay out of the step instead, so that there is nothing to wind back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from memdecay_agents.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def check_runner_generators(runner: GPUModelRunner) -> None:
    """Refuse a runner that keeps its generators elsewhere.

    Raises:
        UnsupportedError: the attributes that are read here are missing.
    """
    if not hasattr(runner, "discard_request_mask") or not hasattr(runner, "input_batch"):
        raise UnsupportedError(
            where=f"model runner {type(runner).__name__}",
            rule="it has no discard_request_mask beside its input batch, by which seeds are kept right on a CPU",
            remedy="Use vLLM 0.32 with the V1 model runner.",
        )


@contextmanager
def generators_of_sampled_rows(runner: GPUModelRunner) -> Iterator[None]:
    """While a step samples, hide the generators of rows whose token will be thrown away.

    The dictionary is the one that the sampling metadata refers to; its entries are put back unused.
    """
    batch = runner.input_batch
    discarded = np.flatnonzero(runner.discard_request_mask.np[: batch.num_reqs]).tolist() if batch.generators else []
    hidden = {row: batch.generators.pop(row) for row in discarded if row in batch.generators}
    try:
        yield
    finally:
        batch.generators.update(hidden)
