// Native-width float vectors by the compiler's vector extension: one source for SSE, AVX2, AVX-512 and NEON.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define MEMDECAY_WIDTH 16
#elif defined(__AVX2__)
#define MEMDECAY_WIDTH 8
#else
#define MEMDECAY_WIDTH 4
#endif

namespace memdecay {
namespace MEMDECAY_ISA {

constexpr int W = MEMDECAY_WIDTH;
typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef int8_t vb __attribute__((vector_size(W)));
typedef uint16_t vh __attribute__((vector_size(2 * W)));

static inline vf splat(float x) { return x - vf{}; }
static inline vf load(const float* p) { vf v; std::memcpy(&v, p, sizeof v); return v; }
static inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
static inline vf bits(vu u) { vf v; std::memcpy(&v, &u, sizeof v); return v; }
static inline vu bits(vf f) { vu v; std::memcpy(&v, &f, sizeof v); return v; }
static inline vf maximum(vf a, vf b) { return a > b ? a : b; }

// Halves of halves: the sum or the maximum of all lanes in log2 W steps.
template <int N, class Step>
static inline float fold(const float* lanes, const Step& step) {
  if constexpr (N == 1) {
    return lanes[0];
  } else {
    float half[N / 2];
    for (int i = 0; i < N / 2; ++i) half[i] = step(lanes[i], lanes[i + N / 2]);
    return fold<N / 2>(half, step);
  }
}
#if defined(__AVX512F__)
static inline float horizontal_max(vf v) { return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v)); }
static inline float horizontal_sum(vf v) { return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v)); }
#else
static inline float horizontal_max(vf v) {
  float lanes[W];
  store(lanes, v);
  return fold<W>(lanes, [](float a, float b) { return a > b ? a : b; });
}
static inline float horizontal_sum(vf v) {
  float lanes[W];
  store(lanes, v);
  return fold<W>(lanes, [](float a, float b) { return a + b; });
}
#endif

static inline vu widen(const uint16_t* p) {
  vh h;
  std::memcpy(&h, p, sizeof h);
  return __builtin_convertvector(h, vu);
}

// 16-bit floats to 32 bits; every bf16 is exact, and so is every fp16.
static inline vf from_bf16(const uint16_t* p) { return bits(widen(p) << 16); }
static inline vf from_fp16(const uint16_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
  return reinterpret_cast<vf>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  const vu h = widen(p);
  const vu magnitude = (h & 0x7fffu) << 13;
  vu value = bits(bits(magnitude) * 0x1p112f);  // also right for subnormal numbers
  value = magnitude >= 0x0f800000u ? (magnitude | 0x7f800000u) : value;
  return bits(value | ((h & 0x8000u) << 16));
#endif
}

// max(now - then, 0) of W clocks as floats.
static inline vf ages(int64_t now, const int64_t* then) {
#if defined(__AVX512DQ__)
  const __m512i clock = _mm512_set1_epi64(now), zero = _mm512_setzero_si512();
  const __m512i low = _mm512_max_epi64(_mm512_sub_epi64(clock, _mm512_loadu_si512(then)), zero);
  const __m512i high = _mm512_max_epi64(_mm512_sub_epi64(clock, _mm512_loadu_si512(then + 8)), zero);
  return reinterpret_cast<vf>(_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtepi64_ps(low)),
                                                 _mm512_cvtepi64_ps(high), 1));
#else
  vf age;
  for (int l = 0; l < W; ++l) age[l] = static_cast<float>(now > then[l] ? now - then[l] : 0);
  return age;
#endif
}

// e^x for x <= 0, within 2 units of the last place; below -87.3 it is 0, also for minus infinity.
static inline vf exp_nonpositive(vf x) {
  const vf floor = splat(-87.3f);
  const vi alive = x >= floor;
  const vf clamped = alive ? x : floor;
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  const vf shifted = clamped * 1.44269504088896341f + magic;
  const vf n = shifted - magic;
  const vf r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const vf result = bits(bits(p) + (bits(shifted) << 23));
  return alive ? result : vf{};
}

// 2^y for y <= 0 with a relative error below 1e-7; below -126 it is 0, also for minus infinity. Two thirds of the
// operations of exp_nonpositive, whose last bit a softmax weight does not need.
static inline vf exp2_nonpositive(vf y) {
  const vi alive = y >= splat(-126.0f);
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  const vf shifted = y + magic;
  const vf f = y - (shifted - magic);
  vf p = splat(1.3276472190e-3f);  // least largest relative error on [-0.5, 0.5]
  p = p * f + 9.6755416162e-3f;
  p = p * f + 5.5507132753e-2f;
  p = p * f + 2.4022119719e-1f;
  p = p * f + 6.9314696706e-1f;
  p = p * f + 1.0f;
  const vf result = bits(bits(p) + (bits(shifted) << 23));
  return alive ? result : vf{};
}

// ln x for finite x > 0 and normal, within 2 units of the last place.
static inline vf log_positive(vf x) {
  const vu u = bits(x);
  vi exponent = (vi)((u >> 23) & 0xffu) - 126;
  vf m = bits((u & 0x007fffffu) | 0x3f000000u);  // in [0.5, 1)
  const vi small = m < 0.707106781186547524f;
  exponent = exponent + small;                   // a true lane is -1
  m = small ? m + m : m;
  m = m - 1.0f;
  const vf z = m * m;
  vf p = splat(7.0376836292e-2f);
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const vf e = __builtin_convertvector(exponent, vf);
  vf y = p * m * z + e * -2.12194440e-4f - 0.5f * z;
  return m + y + e * 0.693359375f;
}

}  // namespace MEMDECAY_ISA
}  // namespace memdecay
