// Logits by the dot product of bfloat16 pairs (AVX512_BF16): for keys whose tokens are neighbours in each dimension.
#pragma once
#include "tiles.h"

#if defined(__AVX512BF16__)
#define MEMDECAY_BF16 1
#include <immintrin.h>

namespace memdecay {
namespace MEMDECAY_ISA {

constexpr int kBf16Tokens = 32;  // a vector of one dimension
constexpr int kBf16Rows = 8;     // two sums a row stay in registers

// Whether it can be done: bfloat16 throughout, and 32 neighbouring tokens to a dimension.
static inline bool bf16_fits(const MassArgs& a) {
  if (a.tile_kind != kColumns || a.key_dtype != kBFloat16 || a.query_dtype != kBFloat16) return false;
  if (a.head_dim % 2 || a.page_size % kBf16Tokens) return false;
  for (int t = 0; t < a.page_size; t += kBf16Tokens)
    if (a.offsets[(t + kTile) * a.head_dim] != a.offsets[t * a.head_dim] + kTile) return false;
  return true;
}

// R rows x 32 tokens. keys: token 0 of them; at [head_dim]: place of each dimension from there on; rows: bfloat16
// [R, head_dim]; a row's logits lie `stride` floats behind the former row's.
template <int R>
static inline void bf16_dots(const uint16_t* keys, const int32_t* at, const uint16_t* rows, int head_dim, float* logits,
                             int64_t stride) {
  constexpr int S = R <= 2 ? 2 : 1;  // sums enough to keep the multipliers busy
  __m512 low[S][R], high[S][R];
  for (int s = 0; s < S; ++s)
    for (int r = 0; r < R; ++r) low[s][r] = high[s][r] = _mm512_setzero_ps();
  auto pair = [&](int d, int s) {
    const __m512i even = _mm512_loadu_si512(keys + at[d]), odd = _mm512_loadu_si512(keys + at[d + 1]);
    const __m512bh first = (__m512bh)_mm512_unpacklo_epi16(even, odd), second = (__m512bh)_mm512_unpackhi_epi16(even, odd);
    for (int r = 0; r < R; ++r) {
      int32_t both;
      std::memcpy(&both, rows + r * head_dim + d, sizeof both);
      const __m512bh query = (__m512bh)_mm512_set1_epi32(both);
      low[s][r] = _mm512_dpbf16_ps(low[s][r], first, query);
      high[s][r] = _mm512_dpbf16_ps(high[s][r], second, query);
    }
  };
  int d = 0;
  for (; d + 2 * S <= head_dim; d += 2 * S)
    for (int s = 0; s < S; ++s) pair(d + 2 * s, s);
  for (; d < head_dim; d += 2) pair(d, 0);
  // Interleaving went by lanes of eight tokens: `low` has the first four of each, `high` the other four.
  const __m512i front = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i back = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int r = 0; r < R; ++r) {
    __m512 first = low[0][r], second = high[0][r];
    if constexpr (S == 2) first = _mm512_add_ps(first, low[1][r]), second = _mm512_add_ps(second, high[1][r]);
    _mm512_storeu_ps(logits + r * stride, _mm512_permutex2var_ps(first, front, second));
    _mm512_storeu_ps(logits + r * stride + 16, _mm512_permutex2var_ps(first, back, second));
  }
}

template <int R = kBf16Rows>
static inline void bf16_rows(const uint16_t* keys, const int32_t* at, const uint16_t* rows, int count, int head_dim,
                             float* logits, int64_t stride) {
  while (count >= R) {
    bf16_dots<R>(keys, at, rows, head_dim, logits, stride);
    rows += static_cast<int64_t>(R) * head_dim, logits += R * stride, count -= R;
  }
  if constexpr (R > 1) {
    if (count) bf16_rows<R - 1>(keys, at, rows, count, head_dim, logits, stride);
  }
}

}  // namespace MEMDECAY_ISA
}  // namespace memdecay
#endif
