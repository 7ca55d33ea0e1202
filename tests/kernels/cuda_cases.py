"""Random steps for the CUDA kernels' tests, and what they have to give, by definition in float64."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import strategies as st

from memdecay_kernels.cuda.attention_mass import attention_mass
from memdecay_kernels.cuda.launcher import Launcher

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SCALE = 0.3


class Step(NamedTuple):
    """What `attention_mass` takes, for ``requests`` rows and ``layers`` layers."""

    queries: list[torch.Tensor]
    key_caches: list[torch.Tensor]
    block_table: torch.Tensor
    context_lens: torch.Tensor
    query_ends: torch.Tensor
    windows: torch.Tensor
    max_context: int
    max_window: int

    def __repr__(self) -> str:
        rows = zip(*(part.tolist() for part in self[3:6]), strict=True)
        keys = self.key_caches[0]
        return (
            f"{len(self.queries)} layers, (context, end, window) {list(rows)}, queries {list(self.queries[0].shape)}, "
            f"keys {list(keys.shape)} strides {keys.stride()}, max_context {self.max_context}"
        )

    def run(self, launcher: Launcher, out: torch.Tensor | None = None, **options) -> torch.Tensor:
        device = self.block_table.device
        if out is None:
            out = torch.full((self.block_table.shape[0], self.max_context), 5.0, device=device)
        attention_mass(
            self.queries, self.key_caches, self.block_table, self.context_lens, self.query_ends, self.windows, out,
            scale=SCALE, max_window=self.max_window, launcher=launcher, **options,
        )  # fmt: skip
        return out

    def expected(self, head_reduce: str = "mean") -> torch.Tensor:
        """float64 ``[requests, max_context]``: one softmax at a time, summed over layers."""
        out = torch.zeros(self.block_table.shape[0], self.max_context, dtype=torch.float64)
        rows = zip(self.context_lens.tolist(), self.query_ends.tolist(), self.windows.tolist(), strict=True)
        for row, (context, end, window) in enumerate(rows):
            if context and window:
                for query, keys in zip(self.queries, self.key_caches, strict=True):
                    tokens = keys[self.block_table[row].long()].flatten(0, 1)[:context].double().cpu()
                    out[row, :context] += one_mass(query[end - window : end].double().cpu(), tokens, head_reduce)
        return out

    def row(self, row: int) -> Step:
        """One request by itself."""
        rows = (part[row : row + 1] for part in self[2:6])
        return self._replace(**dict(zip(self._fields[2:6], rows, strict=True)))

    def tolerance(self) -> float:
        """Relative error to allow: more where logits are large, since float32 has 24 bits for them."""
        largest = max(
            float(query.abs().amax()) * float(keys.abs().amax()) * query.shape[-1]
            for query, keys in zip(self.queries, self.key_caches, strict=True)
        )
        return 2e-6 + 1e-7 * largest * SCALE

    def tensors(self) -> list[torch.Tensor]:
        """Everything that a launch reads."""
        return [*self.queries, *self.key_caches, *self[2:6]]


def one_mass(query: torch.Tensor, keys: torch.Tensor, head_reduce: str) -> torch.Tensor:
    """Queries ``[W, H, D]`` on keys ``[n, Hkv, D]``, all float64; ``[n]``."""
    window, heads, _ = query.shape
    context, kv_heads, _ = keys.shape
    by_head = torch.zeros(heads, context, dtype=torch.float64)
    for head in range(heads):
        for w in range(window):
            seen = context - (window - 1 - w)
            logits = keys[:seen, head // (heads // kv_heads)] @ query[w, head] * SCALE
            by_head[head, :seen] += logits.softmax(0) / window
    return by_head.mean(0) if head_reduce == "mean" else by_head.amax(0)


def keys_in_strides(shape: tuple[int, ...], form: str, make) -> torch.Tensor:
    """Keys ``[pages, page, heads, dim]`` as engines keep them, or in strides that allow no wide load."""
    pages, page, heads, dim = shape
    if form == "tokens_first":
        return make(pages, page, heads, dim)
    if form == "heads_first":
        return make(pages, heads, page, dim).transpose(1, 2)
    if form == "beside_values":
        return make(pages, page, heads, 2 * dim)[..., :dim]
    return make(pages, page, heads, dim + 1)[..., 1:]  # "odd"


@st.composite
def steps(draw, dtype: torch.dtype, *, form: str | None = None, max_layers: int = 3, windows=None) -> Step:
    """Small steps of every kind: ragged, empty rows, groups, windows, page sizes, strides, extreme logits."""
    make = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    magnitude = draw(st.sampled_from([0.1, 1.0, 8.0, 60.0]))
    page = draw(st.sampled_from([8, 16, 24, 32]))
    heads, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3, 7]))
    dim = draw(st.sampled_from([8, 16, 32, 40, 64] if dtype is not torch.float32 else [1, 6, 16]))
    form = form or draw(st.sampled_from(["tokens_first", "heads_first", "beside_values"]))
    layers, requests = draw(st.integers(1, max_layers)), draw(st.integers(1, 3))
    columns = draw(st.integers(1, 80 // page))
    pool = columns + 3
    max_window = draw(st.sampled_from(windows or ([1, 2, 5, 16] if dtype is not torch.float32 else [1, 4])))
    contexts, ends, measured, end = [], [], [], 0
    for _ in range(requests):
        context = draw(st.integers(0, columns * page))
        window = draw(st.integers(1, max(1, min(max_window, context))))
        end += window + draw(st.integers(0, 2))
        contexts.append(context)
        ends.append(end)
        measured.append(window)

    def normal(*shape):
        return (torch.randn(*shape, generator=make) * magnitude).to(dtype)

    tables = [torch.randperm(pool, generator=make)[:columns] for _ in range(requests)]
    return Step(
        [normal(end, heads * group, dim) for _ in range(layers)],
        [keys_in_strides((pool, page, heads, dim), form, normal) for _ in range(layers)],
        torch.stack(tables).int(),
        *(torch.tensor(numbers, dtype=torch.int32) for numbers in (contexts, ends, measured)),
        max(contexts) + draw(st.integers(not max(contexts), 40)),
        max_window,
    )


def assert_mass_close(mass: torch.Tensor, step: Step, head_reduce: str = "mean") -> None:
    """Close to the definition in float64."""
    torch.testing.assert_close(mass.double().cpu(), step.expected(head_reduce), rtol=step.tolerance(), atol=1e-7)
