// Kernels for tests of the element math and of the emulator itself, with faults that a real kernel could have.
#include "device.cuh"

#include "harness.h"

namespace memdecay {

struct ProbeParameters {
    const u32* in;
    u32* out;
    int count, which;
};

// One function of element_math.h, bits in and bits out.
MD_KERNEL(32) element_function(MD_PARAMETERS(ProbeParameters) p) {
    for (int at = thread_index(); at < p.count; at += block_threads()) {
        const u32 bits = p.in[at];
        switch (p.which) {
            case 0: p.out[at] = bits_of_float(exp_of(float_of_bits(bits))); break;
            case 1: p.out[at] = bf16_of_float(float_of_bits(bits)); break;
            case 2: p.out[at] = bits_of_float(float_of_bf16((u16)bits)); break;
            case 3: p.out[at] = fp16_of_float(float_of_bits(bits)); break;
            case 4: p.out[at] = bits_of_float(float_of_fp16((u16)bits)); break;
        }
    }
}

// Reverses a block's values through shared memory: sound with which = 0.
MD_KERNEL(64) reverse_block(MD_PARAMETERS(ProbeParameters) p) {
    MD_SHARED(u32, values, 64);
    const int at = thread_index();
    if (p.which == 2 && at == 63) return;                    // returns before the barrier
    values[p.which == 3 ? at + 1 : at] = p.in[at];           // out of the shared array's bounds
    if (p.which != 1) block_barrier();                       // dropped
    p.out[at] = values[63 - at];
    if (p.which == 4 && at < 32) block_barrier();            // reached by one warp only
    if (p.which == 5) {                                      // by both, at different places
        if (at < 32) block_barrier();
        else block_barrier();
    }
    if (p.which == 6) p.out[at + 1] = 0;                     // out of bounds by one
    if (p.which == 7) values[0] = at;                        // all write one element
    if (p.which == 8) values[at] = values[at ^ 1];           // neighbours read and write without order
}

// Sums a warp's values: sound with which = 0.
MD_KERNEL(32) sum_warp(MD_PARAMETERS(ProbeParameters) p) {
    MD_SHARED(u32, values, 32);
    u32 value = p.in[thread_index()];
    if (p.which == 1 && thread_index() == 5) return;         // a lane is missing in the exchange
    if (p.which == 2 && thread_index() % 2) value += exchange_xor(value, 1);   // half of the warp exchanges
    for (int bit = 16; bit > 0; bit /= 2) value += exchange_xor(value, bit);
    values[thread_index()] = value;
    if (p.which != 3) warp_barrier();                        // dropped
    p.out[thread_index()] = values[31 - thread_index()];
    if (p.which == 4) p.out[thread_index()] = load_words4((const char*)p.in + 4).x;  // not a multiple of 16
    if (p.which == 5) p.out[thread_index()] = (u32)(0x7FFFFFFF + (int)value);        // signed overflow
}

// Lanes exchange in every way that the kernels use.
MD_KERNEL(32) exchange_values(MD_PARAMETERS(ProbeParameters) p) {
    const u32 value = p.in[thread_index()];
    p.out[thread_index()] = exchange_up(value, 3);
    p.out[32 + thread_index()] = exchange_from(value, 7);
    p.out[64 + thread_index()] = ballot(value % 3 == 0);
    p.out[96 + thread_index()] = (u32)count_bits(value);
}

}  // namespace memdecay

using namespace memdecay;

int main() {
    return emulator::serve({EMULATED(element_function), EMULATED(reverse_block), EMULATED(sum_warp),
                            EMULATED(exchange_values)});
}
