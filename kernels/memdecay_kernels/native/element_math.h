// Math of one element, shared by the CPU library, the CUDA kernels and the CPU emulation of those kernels.
//
// Plain C++11 without any include, so that NVRTC, nvcc, g++ and clang++ all take it. Nothing here may be
// compiled with -ffast-math: the tests against the float32 references assume IEEE arithmetic.
#ifndef MEMDECAY_ELEMENT_MATH_H
#define MEMDECAY_ELEMENT_MATH_H

#if defined(__CUDACC__)
#define MD_MATH static __host__ __device__ __forceinline__
#else
#define MD_MATH static inline __attribute__((always_inline))
#endif

namespace memdecay {

typedef unsigned short u16;
typedef unsigned int u32;
static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(float) == 4, "fixed-width types");

// --- bits -----------------------------------------------------------------------------------------------

MD_MATH float float_of_bits(u32 bits) {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(bits);
#else
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
#endif
}

MD_MATH u32 bits_of_float(float value) {
#if defined(__CUDA_ARCH__)
    return __float_as_uint(value);
#else
    u32 bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
#endif
}

// --- bfloat16 and float16 as raw bits -------------------------------------------------------------------

MD_MATH float float_of_bf16(u16 bits) { return float_of_bits((u32)bits << 16); }

// To the nearest, ties to even; a NaN stays a (quiet) NaN.
MD_MATH u16 bf16_of_float(float value) {
    const u32 bits = bits_of_float(value);
    const u32 rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const u32 quiet = (bits >> 16) | 0x0040u;
    return (u16)((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

MD_MATH float float_of_fp16(u16 bits) {
    const u32 sign = ((u32)bits & 0x8000u) << 16;
    const u32 magnitude = (u32)bits & 0x7FFFu;
    // subnormal: a whole number of 2^-24; infinity and NaN: exponent 255; else the exponent is moved
    const u32 subnormal = bits_of_float((float)magnitude * 5.9604644775390625e-8f);
    const u32 special = (magnitude << 13) | 0x7F800000u;
    const u32 normal = (magnitude << 13) + (112u << 23);
    const u32 value = magnitude < 0x0400u ? subnormal : (magnitude >= 0x7C00u ? special : normal);
    return float_of_bits(value | sign);
}

// To the nearest, ties to even; beyond 65504 (by half a step) infinity; a NaN stays a (quiet) NaN.
MD_MATH u16 fp16_of_float(float value) {
    const u32 bits = bits_of_float(value);
    const u32 sign = (bits >> 16) & 0x8000u;
    const u32 magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return (u16)(sign | 0x7E00u);
    if (magnitude >= 0x477FF000u) return (u16)(sign | 0x7C00u);
    if (magnitude < 0x38800000u) {
        // below 2^-14: adding 0.5 leaves the multiple of 2^-24, rounded by the addition, in the low bits
        return (u16)(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3F000000u));
    }
    return (u16)(sign | ((magnitude - (112u << 23) + 0x0FFFu + ((magnitude >> 13) & 1u)) >> 13));
}

// --- the exponential ------------------------------------------------------------------------------------

// e^x with a relative error below 2e-7; 0 below -87.3, infinity above 88.7; NaN stays NaN.
// x = n ln2 + r with |r| <= ln2 / 2, e^r by its series up to r^7 (the next term is below 6e-9), then times 2^n.
// Only selects, no branches, so that compilers turn loops over it into vector code.
MD_MATH float exp_of(float x) {
    const float low = -87.33654f, high = 88.72283f;
    float inside = x > low ? x : low;  // NaN goes to low, and comes back at the end
    inside = inside < high ? inside : high;
    const float scaled = inside * 1.44269504f;
    const int n = (int)(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
    const float whole = (float)n;
    const float r = (inside - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float series = 1.98412698e-4f;
    series = series * r + 1.38888889e-3f;
    series = series * r + 8.33333333e-3f;
    series = series * r + 4.16666667e-2f;
    series = series * r + 1.66666667e-1f;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    // 2^n in two factors: n reaches 128, which one exponent field does not hold
    const int half = n / 2;
    const float power = series * float_of_bits((u32)(half + 127) << 23) * float_of_bits((u32)(n - half + 127) << 23);
    const float bounded = x < low ? 0.0f : (x > high ? float_of_bits(0x7F800000u) : power);
    return x != x ? x : bounded;
}

// --- the policy's element formulas ----------------------------------------------------------------------

// Moving average of mass; keep = (1 - factor)^queries is what stays of the old value.
MD_MATH float ewma_step(float old_value, float mass, float keep) { return keep * old_value + (1.0f - keep) * mass; }

// exp(-rate * age): rate per tick, age in ticks.
MD_MATH float exponential_decay(float rate_per_tick, float age_ticks) { return exp_of(-rate_per_tick * age_ticks); }

// 1 / (1 + age / half_life), both in ticks: one half after one half-life, then slower than any exponential.
MD_MATH float power_law_decay(float half_life_ticks, float age_ticks) {
    return 1.0f / (1.0f + age_ticks / half_life_ticks);
}

// b g(age) + alpha a.
MD_MATH float token_score(float base_priority, float decay, float alpha, float attention) {
    return base_priority * decay + alpha * attention;
}

}  // namespace memdecay

#endif  // MEMDECAY_ELEMENT_MATH_H
