"""What attention mass has to cost on a GPU, computed from shapes: ``python -m memdecay_kernels.cuda.roofline``.

A lower bound under stated assumptions, not a measurement: each pass takes as long as its slowest resource at full
speed. Keys are read twice, once for the rows' sums and once for the weights; the second read comes from the cache if
all of a step's sampled keys fit there. More than 16 rows of queries (heads in a group x W) read the keys again, from
the multiprocessor's own cache. A decode step is bounded by reading all weights, keys and values once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """Peak rates; from data sheets, except where said."""

    name: str
    memory_bytes_per_second: float
    cache_bytes: float
    """Of the last-level cache, what a pass may find there: three quarters of its size (assumed)."""
    near_cache_bytes_per_second: float
    """Of the multiprocessors' own caches: each 128 bytes a clock."""
    exponentials_per_second: float
    """Multiprocessors x 16 x clock."""
    instructions_per_second: float
    """Of whole warps: multiprocessors x 4 x clock."""
    launch_seconds: float
    """Of one kernel inside a CUDA graph (assumed)."""


@dataclass(frozen=True)
class Model:
    """Shapes of a decoder."""

    name: str
    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    element_bytes: int = 2

    def key_bytes(self, requests: int, context_tokens: int, layers: int) -> float:
        """Keys of so many layers."""
        return float(requests * context_tokens * layers * self.kv_heads * self.head_dim * self.element_bytes)

    def step_seconds(self, device: Device, requests: int, context_tokens: int) -> float:
        """Lower bound of a decode step."""
        cache = 2 * self.key_bytes(requests, context_tokens, self.layers)
        return (self.parameters * self.element_bytes + cache) / device.memory_bytes_per_second


@dataclass(frozen=True)
class Sampling:
    """Which attention is measured."""

    name: str
    layers: int
    every_steps: int
    window: int


H200 = Device("H200", 4.8e12, 0.75 * 50e6, 132 * 128 * 1.755e9, 132 * 16 * 1.755e9, 132 * 4 * 1.755e9, 2.5e-6)
QWEN25_3B = Model("Qwen2.5-3B", 3.09e9, 36, 16, 2, 128)
SAMPLINGS = (
    Sampling("all 36 layers, every step, W=1", 36, 1, 1),
    Sampling("all 36 layers, every 4th step, W=4", 36, 4, 4),
    Sampling("8 of 36 layers, every 4th step, W=4", 8, 4, 4),
)
BATCHES = ((1, 8192), (1, 32768), (32, 8192), (32, 32768))
_TILE_ROWS = 16
_LAUNCHES = 3
_WARP_LANES = 32
_INSTRUCTIONS_OF_A_COMPARISON = 5  # a load shared by a warp, two comparisons, two additions


def mass_seconds(device: Device, model: Model, sampling: Sampling, requests: int, context_tokens: int) -> float:
    """Lower bound of one measurement."""
    keys = model.key_bytes(requests, context_tokens, sampling.layers)
    row_tiles = math.ceil(model.heads // model.kv_heads * sampling.window / _TILE_ROWS)
    exponentials = requests * context_tokens * sampling.layers * model.kv_heads * row_tiles * _TILE_ROWS
    computing = max(
        exponentials / device.exponentials_per_second, row_tiles * keys / device.near_cache_bytes_per_second
    )  # fmt: skip
    from_memory = keys / device.memory_bytes_per_second
    second_read = 0.0 if keys <= device.cache_bytes else from_memory
    return max(from_memory, computing) + max(second_read, computing) + _LAUNCHES * device.launch_seconds


def step_share(device: Device, model: Model, sampling: Sampling, requests: int, context_tokens: int) -> float:
    """Time for attention mass over time for decode steps, both at their lower bounds."""
    measured = mass_seconds(device, model, sampling, requests, context_tokens) / sampling.every_steps
    return measured / model.step_seconds(device, requests, context_tokens)


def rank_seconds(device: Device, tokens: int, columns: int) -> float:
    """Lower bound of ranking tokens by counting: every value against every other."""
    warps = columns * tokens**2 / _WARP_LANES
    return warps * _INSTRUCTIONS_OF_A_COMPARISON / device.instructions_per_second + device.launch_seconds


def table(device: Device = H200, model: Model = QWEN25_3B) -> str:
    """The bounds as a Markdown table."""
    lines = [
        f"| {model.name} on {device.name} (computed) | "
        + " | ".join(f"batch {requests}, {tokens // 1024}k" for requests, tokens in BATCHES) + " |",
        "|---|" + "---:|" * len(BATCHES),
        "| decode step, ms | "
        + " | ".join(f"{model.step_seconds(device, *batch) * 1e3:.2f}" for batch in BATCHES) + " |",
    ]  # fmt: skip
    for sampling in SAMPLINGS:
        cells = [
            f"{mass_seconds(device, model, sampling, *batch) * 1e6:.0f} us, "
            f"{step_share(device, model, sampling, *batch) * 100:.2f} %"
            for batch in BATCHES
        ]
        lines.append(f"| {sampling.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rank_sentence(device: Device = H200) -> str:
    """The bound of both rankings of the default policy, as a sentence."""
    times = [f"{rank_seconds(device, tokens, 2) * 1e6:.0f} us for {tokens // 1024}k tokens" for tokens in (8192, 32768)]
    return f"Two rankings take at least {' and '.join(times)} on an {device.name} (computed)."


if __name__ == "__main__":
    print(table(), rank_sentence(), sep="\n\n")
