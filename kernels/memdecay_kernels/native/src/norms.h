// key_norms: how long the keys of some pages are, mean over the key heads.
#pragma once
#include <cmath>

#include "tiles.h"

namespace memdecay {
namespace MEMDECAY_ISA {

// Adds the norms of 16 tokens, times `share`, to out.
template <class Tile>
static inline void add_tile_norms(const Tile& keys, int head_dim, float share, float* out) {
  vf sum[NV] = {};
  for (int d = 0; d < head_dim; d += 2) {
    vf even[NV], odd[NV];
    keys.pair(d, even, odd);
    for (int v = 0; v < NV; ++v) sum[v] += even[v] * even[v] + odd[v] * odd[v];
  }
  for (int v = 0; v < NV; ++v)
    for (int l = 0; l < W; ++l) out[v * W + l] += share * std::sqrt(sum[v][l]);
}

static void key_norms(const NormArgs& a) {
  const int64_t width = a.key_dtype == kFloat32 ? 4 : 2;
  const float share = 1.0f / static_cast<float>(a.num_kv_heads);
  for (int64_t p = 0; p < a.count; ++p) {
    float* out = a.out + p * a.page_size;
    for (int h = 0; h < a.num_kv_heads; ++h) {
      const char* cell = static_cast<const char*>(a.keys) + (a.pages[p] * a.key_page_stride + h * a.key_head_stride) * width;
      const auto* floats = reinterpret_cast<const float*>(cell);
      const auto* halves = reinterpret_cast<const uint16_t*>(cell);
      for (int t = 0; t < a.page_size;) {
        const int32_t* at = a.offsets + static_cast<int64_t>(t) * a.head_dim;
        if (a.tile_kind == kColumns && a.key_dtype == kFloat32) {
          add_tile_norms(ColumnTile<kFloat32>{floats, at}, a.head_dim, share, out + t);
        } else if (a.tile_kind == kColumns && a.key_dtype == kBFloat16) {
          add_tile_norms(ColumnTile<kBFloat16>{halves, at}, a.head_dim, share, out + t);
        } else if (a.tile_kind == kColumns) {
          add_tile_norms(ColumnTile<kFloat16>{halves, at}, a.head_dim, share, out + t);
        } else if (a.tile_kind == kPairs && a.key_dtype == kBFloat16) {
          add_tile_norms(PairTileBf16{halves, at}, a.head_dim, share, out + t);
        } else {
          float sum = 0;
          for (int d = 0; d < a.head_dim; ++d) {
            const float x = scalar(cell, a.key_dtype, at[d]);
            sum += x * x;
          }
          out[t++] += share * std::sqrt(sum);
          continue;
        }
        t += kTile;
      }
    }
  }
}

}  // namespace MEMDECAY_ISA
}  // namespace memdecay
