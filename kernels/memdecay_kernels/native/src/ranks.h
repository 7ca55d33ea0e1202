// Ranks of floats by a radix sort: no comparison, so that 8,192 tokens take tens of microseconds.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

namespace memdecay {

// A float's bits as an unsigned number in the same order; -0 and +0 are one number.
inline uint32_t ordered_bits(float value) {
  uint32_t u;
  value += 0.0f;  // -0 becomes +0
  std::memcpy(&u, &value, sizeof u);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// Ranks in [0, 1], equal values sharing their mean rank; one value: 0.5.
void unit_ranks(const float* values, int64_t count, float* ranks);

}  // namespace memdecay
