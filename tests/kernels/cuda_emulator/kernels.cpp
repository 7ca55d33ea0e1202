// The product's kernels, compiled for the emulator.
#include "attention_mass.cuh"

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
    });
}
