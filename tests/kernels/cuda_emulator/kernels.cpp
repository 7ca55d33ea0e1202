// The product's kernels, compiled for the emulator.
#include "kernels.cu"

#include "harness.h"

using namespace memdecay;

int main() {
    return emulator::serve({
        EMULATED(mass_statistics_bf16), EMULATED(mass_of_tokens_bf16),
        EMULATED(mass_statistics_fp16), EMULATED(mass_of_tokens_fp16),
        EMULATED(mass_statistics_bf16_strided), EMULATED(mass_of_tokens_bf16_strided),
        EMULATED(mass_statistics_fp16_strided), EMULATED(mass_of_tokens_fp16_strided),
        EMULATED(mass_statistics_fp32), EMULATED(mass_of_tokens_fp32),
        EMULATED(mass_totals_of_rows),
        EMULATED(observe_tokens), EMULATED(rank_tokens), EMULATED(score_parts), EMULATED(select_pages),
        EMULATED(compact_table), EMULATED(copy_pages_wide), EMULATED(copy_pages_bytes),
    });
}
