// Logits by the matrix unit (AMX): keys in pairs are its second operand as they lie in the cache.
#pragma once
#include "tiles.h"

#if defined(__AMX_BF16__)
#define MEMDECAY_AMX 1
#include <immintrin.h>

namespace memdecay {
namespace MEMDECAY_ISA {

constexpr int kAmxDims = 32;      // dimensions of one multiplication
constexpr int kAmxMaxDims = 128;  // query tiles that stay in registers: 4

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t columns_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Whether the matrix unit can do it: pairs of bfloat16 with rows of 16 tokens at one stride.
static inline bool amx_fits(const MassArgs& a) {
  if (a.tile_kind != kPairs || a.key_dtype != kBFloat16 || a.query_dtype != kBFloat16) return false;
  if (a.head_dim % kAmxDims || a.head_dim > kAmxMaxDims || a.page_size % kTile) return false;
  const int32_t stride = a.offsets[2];
  for (int d = 0; d < a.head_dim; d += 2)
    if (a.offsets[d] != d / 2 * stride) return false;
  return true;
}

// Registers: 0-3 queries by 32 dimensions, 4-5 keys, 6 the sums of a tile of tokens.
class AmxBlock {
 public:
  AmxBlock(int rows, int head_dim) : steps_(head_dim / kAmxDims) {
    TileConfig config;
    for (int t = 0; t < 4; ++t) config.rows[t] = rows, config.columns_bytes[t] = 64;
    for (int t = 4; t < 6; ++t) config.rows[t] = 16, config.columns_bytes[t] = 64;
    config.rows[6] = rows, config.columns_bytes[6] = 64;
    _tile_loadconfig(&config);
  }
  ~AmxBlock() { _tile_release(); }

  // rows: bfloat16 [count, head_dim]
  void load_rows(const uint16_t* rows, int head_dim) const {
    const int64_t stride = head_dim * 2;
    _tile_loadd(0, rows, stride);
    if (steps_ > 1) _tile_loadd(1, rows + 32, stride);
    if (steps_ > 2) _tile_loadd(2, rows + 64, stride);
    if (steps_ > 3) _tile_loadd(3, rows + 96, stride);
  }

  // One tile of 16 tokens; both strides in bytes.
  void tile(const char* keys, int64_t stride, float* logits, int64_t logits_stride) const {
    _tile_zero(6);
    _tile_loadd(4, keys, stride);
    _tile_dpbf16ps(6, 0, 4);
    if (steps_ > 1) { _tile_loadd(5, keys + 16 * stride, stride); _tile_dpbf16ps(6, 1, 5); }
    if (steps_ > 2) { _tile_loadd(4, keys + 32 * stride, stride); _tile_dpbf16ps(6, 2, 4); }
    if (steps_ > 3) { _tile_loadd(5, keys + 48 * stride, stride); _tile_dpbf16ps(6, 3, 5); }
    _tile_stored(6, logits, logits_stride);
  }

 private:
  int steps_;
};

}  // namespace MEMDECAY_ISA
}  // namespace memdecay
#endif
