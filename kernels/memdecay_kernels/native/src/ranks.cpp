#include "ranks.h"

namespace memdecay {

namespace {

constexpr int kDigitBits = 11, kDigits = 1 << kDigitBits, kPasses = 3;

struct Entry {
  uint32_t key, place;
};

inline uint32_t digit(uint32_t key, int pass) { return key >> (pass * kDigitBits) & (kDigits - 1); }

void counts_to_starts(uint32_t* counts) {
  uint32_t sum = 0;
  for (int d = 0; d < kDigits; ++d) {
    const uint32_t here = counts[d];
    counts[d] = sum;
    sum += here;
  }
}

}  // namespace

void unit_ranks(const float* values, int64_t count, float* ranks) {
  if (count < 2) {
    if (count) ranks[0] = 0.5f;
    return;
  }
  static thread_local std::vector<Entry> one, two;
  static thread_local std::vector<uint32_t> keys;
  one.resize(count), two.resize(count), keys.resize(count);
  uint32_t starts[kPasses][kDigits] = {};
  for (int64_t i = 0; i < count; ++i) keys[i] = ordered_bits(values[i]);
  for (int64_t i = 0; i < count; ++i)
    for (int pass = 0; pass < kPasses; ++pass) ++starts[pass][digit(keys[i], pass)];
  for (auto& counts : starts) counts_to_starts(counts);
  for (int64_t i = 0; i < count; ++i) one[starts[0][digit(keys[i], 0)]++] = {keys[i], static_cast<uint32_t>(i)};
  for (const Entry& entry : one) two[starts[1][digit(entry.key, 1)]++] = entry;
  for (const Entry& entry : two) one[starts[2][digit(entry.key, 2)]++] = entry;
  const float step = 0.5f / static_cast<float>(count - 1);
  for (int64_t i = 0; i < count;) {
    int64_t end = i + 1;
    while (end < count && one[end].key == one[i].key) ++end;
    const float rank = static_cast<float>(i + end - 1) * step;
    for (; i < end; ++i) ranks[one[i].place] = rank;
  }
}

}  // namespace memdecay
