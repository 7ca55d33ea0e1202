// Logits of a block of query rows over tiles of 16 tokens, by fused multiply-add.
#pragma once
#include <type_traits>

#include "api.h"
#include "vectors.h"

namespace memdecay {
namespace MEMDECAY_ISA {

constexpr int kTile = 16;      // tokens of a tile
constexpr int NV = kTile / W;  // vectors of a tile

// The keys of one head of one request, page by page.
struct KeyPages {
  const char* head;            // cell of page 0
  int64_t page_stride_bytes;
  const int32_t* pages;        // page ids in token order
  int32_t page_size;           // tokens
  int32_t page_count;
  int32_t head_dim;
  int32_t dtype;
  const int32_t* offsets;      // [page_size, head_dim]

  const char* cell(int number) const { return head + pages[number] * page_stride_bytes; }
  int element_bytes() const { return dtype == kFloat32 ? 4 : 2; }
};

static inline float scalar(const void* data, int32_t dtype, int64_t at) {
  if (dtype == kFloat32) return static_cast<const float*>(data)[at];
  uint16_t lanes[W] = {static_cast<const uint16_t*>(data)[at]};
  return (dtype == kBFloat16 ? from_bf16(lanes) : from_fp16(lanes))[0];
}

// --- where the elements of 16 tokens are: `pair` gives two neighbouring dimensions ------------------------------------

template <int32_t kDType>
struct ColumnTile {  // for each dimension 16 neighbouring tokens
  using Element = typename std::conditional<kDType == kFloat32, float, uint16_t>::type;
  const Element* base;
  const int32_t* at;  // [head_dim]: place of each dimension from `base` on
  inline void pair(int d, vf* even, vf* odd) const {
    one(base + at[d], even);
    one(base + at[d + 1], odd);
  }
  static inline void one(const Element* p, vf* out) {
    for (int v = 0; v < NV; ++v) {
      if constexpr (kDType == kFloat32) out[v] = load(p + v * W);
      else if constexpr (kDType == kBFloat16) out[v] = from_bf16(p + v * W);
      else out[v] = from_fp16(p + v * W);
    }
  }
};

struct PairTileBf16 {  // for each pair of dimensions 16 x (even, odd)
  const uint16_t* base;
  const int32_t* at;
  inline void pair(int d, vf* even, vf* odd) const {
    const uint16_t* p = base + at[d];
    for (int v = 0; v < NV; ++v) {
      vu both;
      std::memcpy(&both, p + 2 * v * W, sizeof both);
      even[v] = bits(both << 16);
      odd[v] = bits(both & 0xffff0000u);
    }
  }
};

struct FloatTile {  // [even head_dim][16], gathered before
  const float* base;
  inline void pair(int d, vf* even, vf* odd) const {
    for (int v = 0; v < NV; ++v) {
      even[v] = load(base + d * kTile + v * W);
      odd[v] = load(base + (d + 1) * kTile + v * W);
    }
  }
};

// --- rows x 16 tokens -------------------------------------------------------------------------------------------------

// R rows at once; several sums a row keep the multipliers busy. head_dim is even.
template <int R, class Tile>
static inline void dot_tile(const Tile& keys, const float* rows, int head_dim, float* logits, int64_t stride) {
  constexpr int S = R * NV <= 2 ? 4 : 2;
  vf sum[S][R][NV] = {};
  int d = 0;
  if constexpr (S == 4) {
    for (; d + 4 <= head_dim; d += 4) {
      vf k[4][NV];
      keys.pair(d, k[0], k[1]);
      keys.pair(d + 2, k[2], k[3]);
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < NV; ++v)
          for (int s = 0; s < 4; ++s) sum[s][r][v] += k[s][v] * rows[r * head_dim + d + s];
    }
  }
  for (; d < head_dim; d += 2) {
    vf even[NV], odd[NV];
    keys.pair(d, even, odd);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < NV; ++v) {
        sum[0][r][v] += even[v] * rows[r * head_dim + d];
        sum[1][r][v] += odd[v] * rows[r * head_dim + d + 1];
      }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < NV; ++v) {
      vf total = sum[0][r][v] + sum[1][r][v];
      if constexpr (S == 4) total += sum[2][r][v] + sum[3][r][v];
      store(logits + r * stride + v * W, total);
    }
}

constexpr int kMaxRows = W == 16 ? 8 : (W == 8 ? 3 : 2);  // as many sums as there are registers

template <class Tile, int R = kMaxRows>
static inline void dot_rows(const Tile& keys, const float* rows, int count, int head_dim, float* logits,
                            int64_t stride) {
  while (count >= R) {
    dot_tile<R>(keys, rows, head_dim, logits, stride);
    rows += static_cast<int64_t>(R) * head_dim, logits += R * stride, count -= R;
  }
  if constexpr (R > 1) {
    if (count) dot_rows<Tile, R - 1>(keys, rows, count, head_dim, logits, stride);
  }
}

// The tokens of a tile that lie anywhere, as [even_dim][16]; tokens behind the last page are left out.
static inline void gather_tile(const KeyPages& keys, int token, int even_dim, float* tile) {
  for (int i = 0; i < kTile; ++i) {
    const int number = (token + i) / keys.page_size, inside = (token + i) % keys.page_size;
    if (number >= keys.page_count) {
      for (int d = 0; d < even_dim; ++d) tile[d * kTile + i] = 0;
      continue;
    }
    const char* cell = keys.cell(number);
    const int32_t* at = keys.offsets + static_cast<int64_t>(inside) * keys.head_dim;
    for (int d = 0; d < keys.head_dim; ++d) tile[d * kTile + i] = scalar(cell, keys.dtype, at[d]);
    if (even_dim > keys.head_dim) tile[keys.head_dim * kTile + i] = 0;
  }
}

// Ask for a tile's memory ahead of its use: what the hardware cannot guess is the next page.
static inline void prefetch(const char* from, int bytes) {
  for (int at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 3);
}

}  // namespace MEMDECAY_ISA
}  // namespace memdecay
