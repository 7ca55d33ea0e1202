#include "ranks.h"

namespace memdecay {

namespace {
constexpr int kDigitBits = 11, kDigits = 1 << kDigitBits, kPasses = 3;
struct Entry {
  uint32_t key, place;
};
}  // namespace

void unit_ranks(const float* values, int64_t count, float* ranks) {
  if (count < 2) {
    if (count) ranks[0] = 0.5f;
    return;
  }
  static thread_local std::vector<Entry> one, two;
  one.resize(count), two.resize(count);
  uint32_t starts[kPasses][kDigits] = {};
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t key = ordered_bits(values[i]);
    one[i] = {key, static_cast<uint32_t>(i)};
    for (int pass = 0; pass < kPasses; ++pass) ++starts[pass][key >> (pass * kDigitBits) & (kDigits - 1)];
  }
  Entry *from = one.data(), *to = two.data();
  for (int pass = 0; pass < kPasses; ++pass) {
    uint32_t* start = starts[pass];
    const int shift = pass * kDigitBits;
    if (start[from[0].key >> shift & (kDigits - 1)] == static_cast<uint32_t>(count)) continue;  // one digit for all
    uint32_t sum = 0;
    for (int digit = 0; digit < kDigits; ++digit) {
      const uint32_t here = start[digit];
      start[digit] = sum;
      sum += here;
    }
    for (int64_t i = 0; i < count; ++i) to[start[from[i].key >> shift & (kDigits - 1)]++] = from[i];
    std::swap(from, to);
  }
  const float last = static_cast<float>(count - 1);
  for (int64_t i = 0; i < count;) {
    int64_t end = i + 1;
    while (end < count && from[end].key == from[i].key) ++end;
    const float rank = static_cast<float>(i + end - 1) * 0.5f / last;
    for (; i < end; ++i) ranks[from[i].place] = rank;
  }
}

}  // namespace memdecay
