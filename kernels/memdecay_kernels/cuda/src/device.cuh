// What the kernels use of a GPU: indices, barriers, exchange between lanes, wide loads, one matrix instruction.
//
// No CUDA toolkit headers: NVRTC alone compiles this. With MEMDECAY_EMULATOR the same names come from the
// CPU emulator of the tests, so that the kernels themselves are one source for both.
#pragma once

#include "element_math.h"

namespace memdecay {

typedef long long i64;
static_assert(sizeof(i64) == 8, "fixed-width types");

constexpr int kWarpLanes = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

struct alignas(16) Words4 {
    u32 x, y, z, w;
};

}  // namespace memdecay

#if defined(MEMDECAY_EMULATOR)

#include "emulator.h"

#else

#define MD_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, (threads) <= 256 ? 2 : 1)
#define MD_PARAMETERS(Type) const __grid_constant__ Type
#define MD_DEVICE static __device__ __forceinline__
// An array that the block shares. Its elements are scalars, read and written by index only.
#define MD_SHARED(Type, name, count) __shared__ Type name[count]

namespace memdecay {

MD_DEVICE int thread_index() { return (int)threadIdx.x; }
MD_DEVICE int block_threads() { return (int)blockDim.x; }
MD_DEVICE int block_x() { return (int)blockIdx.x; }
MD_DEVICE int block_y() { return (int)blockIdx.y; }
MD_DEVICE int block_z() { return (int)blockIdx.z; }
MD_DEVICE int grid_y() { return (int)gridDim.y; }

MD_DEVICE void block_barrier() { __syncthreads(); }
MD_DEVICE void warp_barrier() { __syncwarp(); }

template <typename Value>
MD_DEVICE Value exchange_xor(Value value, int bit) {
    return __shfl_xor_sync(kAllLanes, value, bit);
}

template <typename Value>
MD_DEVICE Value exchange_up(Value value, int distance) {
    return __shfl_up_sync(kAllLanes, value, (unsigned)distance);
}

template <typename Value>
MD_DEVICE Value exchange_from(Value value, int lane) {
    return __shfl_sync(kAllLanes, value, lane);
}

MD_DEVICE u32 ballot(bool predicate) { return __ballot_sync(kAllLanes, predicate); }
MD_DEVICE int count_bits(u32 bits) { return __popc(bits); }

MD_DEVICE float natural_log(float x) { return logf(x); }

// An index that leads out of its array: the launch fails instead of reading foreign memory.
MD_DEVICE void stop_with_error() { asm volatile("trap;"); }

// 2^x with a relative error near 2^-22; 0 for -infinity.
MD_DEVICE float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// The address is a multiple of 16.
MD_DEVICE Words4 load_words4(const void* address) {
    const uint4 words = __ldg((const uint4*)address);
    return Words4{words.x, words.y, words.z, words.w};
}

// One tile of a matrix product: c[16 x 8] += a[16 x 16] b[16 x 8], for the whole warp.
//   a: row lane/4 (a0, a2) and lane/4 + 8 (a1, a3), two neighbouring columns in each word, columns
//      2 (lane%4) (a0, a1) and 8 further (a2, a3);  b: the same columns of a as rows, column lane/4;
//   c: rows lane/4 (c0, c1) and lane/4 + 8 (c2, c3), columns 2 (lane%4) and the next.
MD_DEVICE void multiply_tile_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

MD_DEVICE void multiply_tile_fp16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace memdecay

#endif

namespace memdecay {

MD_DEVICE int lane_index() { return thread_index() % kWarpLanes; }
MD_DEVICE int warp_index() { return thread_index() / kWarpLanes; }

}  // namespace memdecay
