// What a benchmark compares attention_mass with: reading the same keys once, and nothing else.
#pragma once
#include "tiles.h"

namespace memdecay {
namespace MEMDECAY_ISA {

// Reads the keys of every request's pages, page by page and head by head, as wide as the processor can; the
// exclusive or of all words goes to `out`, so that no read can be left out.
static void read_keys(const MassArgs& a) {
  const int64_t width = a.key_dtype == kFloat32 ? 4 : 2, bytes = static_cast<int64_t>(a.page_size) * a.head_dim * width;
  for (int r = 0; r < a.requests; ++r) {
    const int32_t* pages = a.block_table + r * a.table_stride;
    const int count = (a.context_lens[r] + a.page_size - 1) / a.page_size;
    vu sum[4] = {};
    for (int p = 0; p < count; ++p)
      for (int h = 0; h < a.num_kv_heads; ++h) {
        const char* cell = static_cast<const char*>(a.keys) + (pages[p] * a.key_page_stride + h * a.key_head_stride) * width;
        for (int64_t at = 0; at + 4 * static_cast<int64_t>(sizeof(vu)) <= bytes; at += 4 * sizeof(vu))
          for (int v = 0; v < 4; ++v) {
            vu part;
            std::memcpy(&part, cell + at + v * sizeof part, sizeof part);
            sum[v] ^= part;
          }
      }
    const vu all = (sum[0] ^ sum[1]) ^ (sum[2] ^ sum[3]);
    a.out[r * a.out_stride] = static_cast<float>(all[0] & 1u);
  }
}

}  // namespace MEMDECAY_ISA
}  // namespace memdecay
