"""The product's kernels with one fault planted in each, as one source for the emulator."""

from __future__ import annotations

from typing import NamedTuple

from tests.kernels.cuda_emulator.emulated import KERNELS


class Mutant(NamedTuple):
    """One change to one source file that has to be noticed."""

    name: str
    file: str
    old: str
    new: str
    kernels: tuple[str, ...]
    notice: str
    """What the emulator or a sanitizer says."""


MASS = ("mass_statistics_bf16", "mass_totals_of_rows", "mass_of_tokens_bf16")
MUTANTS = (
    Mutant("select_without_first_barrier", "select_pages.cuh", "block_barrier();  // everyone has read", "//",
           ("select_pages",), "race"),
    Mutant("select_without_second_barrier", "select_pages.cuh",
           "thread_index());\n        block_barrier();", "thread_index());", ("select_pages",), "race"),
    Mutant("select_reads_past_the_last_page", "select_pages.cuh", "page < p.page_count && p.evictable",
           "page <= p.page_count && p.evictable", ("select_pages",), "heap-buffer-overflow"),
    Mutant("select_returns_early", "select_pages.cuh", "int before = 0, candidates = 0;",
           "int before = 0, candidates = 0; if (page >= p.page_count) return;", ("select_pages",), "divergence"),
    Mutant("compact_without_barrier", "compact_table.cuh", "block_barrier();  // everyone has read", "//",
           ("compact_table",), "race"),
    Mutant("compact_reads_past_the_row", "compact_table.cuh", "pages < p.columns ? pages : p.columns", "pages",
           ("compact_table",), "heap-buffer-overflow"),
    Mutant("mass_statistics_without_barrier", "attention_mass.cuh",
           "block_barrier();\n        if (thread_index() < kTileRows)", "if (thread_index() < kTileRows)", MASS,
           "race"),
    Mutant("mass_statistics_without_the_other_barrier", "attention_mass.cuh",
           "block_barrier();  // everyone has read the statistics before", "//", MASS, "race"),
    Mutant("mass_of_tokens_without_barrier", "attention_mass.cuh",
           "block_barrier();\n    const int token", "const int token", MASS, "race"),
    Mutant("mass_reads_past_the_context", "attention_mass.cuh", "token = token < r.tokens ? token : r.tokens - 1;",
           "token += 0 * r.tokens;", MASS, "heap-buffer-overflow"),
    Mutant("mass_lanes_return_before_the_exchange", "attention_mass.cuh",
           "if (first_token < r.tokens) {  // the whole warp",
           "if (first_token + lane_index() >= r.tokens) return;\n    {",
           MASS, "divergence"),
    Mutant("mass_skips_exchanges_of_unused_rows", "attention_mass.cuh", "if (!(Tile::kRowPeers & bit)) continue;",
           "if (!(Tile::kRowPeers & bit) || mine[i].maximum == lowest()) continue;", MASS, "divergence"),
)  # fmt: skip


# what a file includes and a fault may be in
PARTS = {"attention_mass.cuh": ("mass_work.cuh",)}
# other headers are included once for all, and of the kernels made by a macro only those for bfloat16 are needed
DROPPED = ("#pragma once", "#include", *(f"MD_MASS_KERNELS({name}" for name in ("fp16", "bf16_strided", "fp32")))


def mutant_source() -> str:
    """A program with every mutant, each in a namespace of its own, its kernels named ``<mutant>.<kernel>``."""
    parts = ['#include "mass_tiles.cuh"', '#include "harness.h"']
    served = []
    for number, mutant in enumerate(MUTANTS):
        files = (*PARTS.get(mutant.file, ()), mutant.file)
        text = "\n".join((KERNELS / "cuda" / "src" / file).read_text() for file in files)
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.name}: {text.count(mutant.old)} places in {mutant.file} read {mutant.old!r}")
        text = text.replace(mutant.old, mutant.new)
        lines = [line for line in text.splitlines() if not line.startswith(DROPPED)]
        own = f"namespace mutant{number} {{ using namespace memdecay;"
        parts.append("\n".join(lines).replace("namespace memdecay {", own))
        for kernel in mutant.kernels:
            qualified = f"mutant{number}::{kernel}"
            served.append(
                f"emulator::make_kernel<emulator::ParametersOf<decltype(&{qualified})>::Type, &{qualified}>"
                f'("{number}.{kernel}")'
            )
    parts.append("int main() { return emulator::serve({" + ",\n".join(served) + "}); }")
    return "\n".join(parts)
