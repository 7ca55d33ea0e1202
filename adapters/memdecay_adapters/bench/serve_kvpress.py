"""The comparison with transformers + kvpress, which live in an environment of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memdecay_adapters.bench.serve_options import ServeOptions
from memdecay_adapters.bench.serve_steps import as_dict, medians
from memdecay_adapters.bench.statistics import paired_ratio
from memdecay_agents.errors import ConfigError, EngineError

PRESS = "SnapKVPress"
MOST_STEPS = 4
"""Of a sample; its steps are alike, for none measures or evicts."""
_PROGRAM = Path(__file__).with_name("kvpress_program.py")


def check_interpreter(python: Path) -> None:
    """Raises ConfigError where there is no program of that name."""
    if shutil.which(str(python)) is None:
        raise ConfigError(
            where=f"--kvpress-python {python}",
            rule="there is no such program",
            remedy="Name the interpreter of an environment with kvpress, such as kvpress-env/bin/python.",
        )


def measure_kvpress(
    python: Path, model_path: str, options: ServeOptions, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Decode steps of long prompts whose cache a press has compressed to the budget.

    It knows no pool, no sessions and no requests that come and go: a prompt is prefilled in full, and a batch of its
    likes is decoded. Not interleaved with our engines: its environment cannot import them.

    Args:
        python: interpreter of an environment with kvpress and transformers.
        model_path: a local folder.
        options: batch, lengths, budget.
        progress: told what is being done.

    Raises:
        EngineError: the program failed; with its last line.
    """
    progress(
        f"transformers + kvpress: prefilling {options.long_tokens} tokens twice, decoding a batch of {options.batch}"
    )
    asked = {
        "model": model_path,
        "tokens": options.long_tokens,
        "budget_tokens": options.budget_tokens,
        "batch": options.batch,
        "steps": min(options.steps_per_sample, MOST_STEPS),
        "pairs": options.length_pairs,
        "seed": options.workload.seed,
        "press": PRESS,
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [str(python), str(_PROGRAM), json.dumps(asked)], capture_output=True, text=True, env=environment, check=False
    )
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["no message"]
        raise EngineError(
            where=f"transformers + kvpress ({python})",
            rule=lines[-1],
            remedy="Install kvpress and a CPU build of torch into that environment, or leave --kvpress-python out.",
        )
    measured = json.loads(ended.stdout.strip().splitlines()[-1])
    samples = measured.pop("samples")
    return {
        **measured,
        "step_seconds": medians(samples),
        "press_vs_full": as_dict(paired_ratio(samples["press"], samples["full"])),
    }
