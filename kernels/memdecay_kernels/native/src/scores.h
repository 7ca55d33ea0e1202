// observe_tokens, score_pages and local salience for one instruction set.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "api.h"
#include "mass.h"
#include "ranks.h"
#include "vectors.h"

namespace memdecay {
namespace MEMDECAY_ISA {

constexpr int8_t kSuperseded = 2;

static inline vf exp_of_negative(vf x) { return exp_nonpositive(x); }

// log of each floored value over the mean of itself and its neighbours; sums in float64.
static void salience_of(const float* relative, int64_t count, float floor, int64_t neighbours, float* out) {
  std::vector<double> total(count + 1);
  total[0] = 0;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) total[i + 1] = sum += std::max(relative[i], floor);
  int64_t i = 0;
  float ratio[W];
  for (; i < count; i += W) {
    const int lanes = static_cast<int>(std::min<int64_t>(W, count - i));
    for (int l = 0; l < W; ++l) ratio[l] = 1.0f;
    for (int l = 0; l < lanes; ++l) {
      const int64_t first = std::max<int64_t>(i + l - neighbours, 0), last = std::min(i + l + neighbours + 1, count);
      const float mean = static_cast<float>((total[last] - total[first]) / static_cast<double>(last - first));
      ratio[l] = std::max(relative[i + l], floor) / mean;
    }
    const vf logs = log_positive(load(ratio));
    for (int l = 0; l < lanes; ++l) out[i + l] = logs[l];
  }
}

static void salience(const SalienceArgs& a) { salience_of(a.relative_mass, a.count, a.floor, a.neighbours, a.salience); }

static void observe(const ObserveArgs& a) {
  const float uniform = static_cast<float>(a.count);
  std::vector<float> relative(a.count), salient(a.count);
  for (int64_t i = 0; i < a.count; ++i) relative[i] = a.mass[i] * uniform;
  salience_of(relative.data(), a.count, a.salience_floor, a.salience_neighbours, salient.data());
  const int64_t oldest_new = a.token_index[a.count - 1] - a.salience_min_age_tokens;
  const float* newest = a.newest_mass ? a.newest_mass : a.mass;
  const float rest = 1.0f - a.keep;
  for (int64_t i = 0; i < a.count;) {
    const int64_t first = a.token_index[i];
    int64_t n = 1;  // a run of neighbouring tokens: whole pages in a row
    while (i + n < a.count && a.token_index[i + n] == first + n) ++n;
    for (int64_t j = 0; j < n; ++j) a.ewma_mass[first + j] = a.keep * a.ewma_mass[first + j] + rest * a.mass[i + j];
    for (int64_t j = 0; j < n; ++j) a.accumulated_relative[first + j] += a.weight * relative[i + j];
    for (int64_t j = 0; j < n; ++j) a.last_query_mass[first + j] = newest[i + j];
    const int64_t old = std::clamp<int64_t>(oldest_new - first + 1, 0, n);
    for (int64_t j = 0; j < old; ++j) a.salience_sum[first + j] += a.weight * salient[i + j];
    for (int64_t j = 0; j < old; ++j) a.salience_weight[first + j] += a.weight;
    if (a.refresh) {
      const float* seen = a.refresh == 1 ? a.mass : relative.data();
      for (int64_t j = 0; j < n; ++j)
        if (seen[i + j] > a.refresh_threshold) a.refreshed_at_ticks[first + j] = a.clock_ticks;
    }
    i += n;
  }
}

// What a page's tokens add up to in one of the three parts; the mean is over its processed tokens.
class PageScores {
 public:
  explicit PageScores(const ScoreArgs& a) : a_(a), page_(a.page_size) {}

  void run() {
    for (int64_t p = 0; p < a_.page_count; ++p) structure_and_magnitudes(p);
    if (a_.attention_ranks) ranked(1, a_.attention_weight, [&](int64_t at) { return a_.attention[at]; });
    if (a_.salience_ranks) ranked(2, a_.salience_weight_factor, [&](int64_t at) { return mean_salience(at); });
  }

 private:
  float mean_salience(int64_t at) const { return a_.salience_sum[at] / std::max(a_.salience_weight[at], 1.0f); }

  int64_t processed(int64_t page) const {
    return std::clamp<int64_t>(a_.processed_tokens - page * page_, 0, page_);
  }

  void structure_and_magnitudes(int64_t p) {
    const int64_t page = a_.pages[p], first = page * page_, count = processed(page);
    float structure = 0, attention = 0, salience = 0;
    for (int64_t t = 0; t < count; t += W) {
      const int lanes = static_cast<int>(std::min<int64_t>(W, count - t));
      const vf part = structure_of(first + t, lanes);
      structure += lanes == W ? sum(part) : partial_sum(part, lanes);
    }
    if (!a_.attention_ranks && a_.attention_weight != 0) {
      for (int64_t t = 0; t < count; ++t) attention += a_.attention[first + t];
    }
    if (!a_.salience_ranks && a_.salience_weight_factor != 0) {
      for (int64_t t = 0; t < count; ++t) salience += mean_salience(first + t);
    }
    const float share = 1.0f / static_cast<float>(std::max<int64_t>(count, 1));
    a_.out[p] = structure * share;
    a_.out[a_.page_count + p] = attention * share * a_.attention_weight;
    a_.out[2 * a_.page_count + p] = salience * share * a_.salience_weight_factor;
  }

  // b g(age) of W tokens; lanes behind the last read the page's own memory and are not summed.
  vf structure_of(int64_t at, int lanes) const {
    vf age = {}, priority = {}, decay = {};
    for (int l = 0; l < lanes; ++l) {
      age[l] = static_cast<float>(std::max<int64_t>(a_.clock_ticks - a_.refreshed_at_ticks[at + l], 0));
      const int region = a_.region[at + l];
      priority[l] = a_.base_priority[region] * (a_.flags[at + l] & kSuperseded ? a_.superseded_factor : 1.0f);
      decay[l] = a_.decay[region];
    }
    if (a_.power_law) return priority / (age / decay + 1.0f);
    return priority * exp_of_negative(-(age * decay));
  }

  static float sum(vf v) { return horizontal_sum(v); }
  static float partial_sum(vf v, int lanes) {
    float s = 0;
    for (int l = 0; l < lanes; ++l) s += v[l];
    return s;
  }

  template <class Value>
  void ranked(int part, float weight, const Value& value) {
    std::vector<float> values, ranks;
    for (int64_t p = 0; p < a_.page_count; ++p)
      if (a_.evictable[p])
        for (int t = 0; t < page_; ++t) values.push_back(value(a_.pages[p] * page_ + t));
    ranks.resize(values.size());
    unit_ranks(values.data(), static_cast<int64_t>(values.size()), ranks.data());
    const float* next = ranks.data();
    for (int64_t p = 0; p < a_.page_count; ++p) {
      float total = 0;
      if (a_.evictable[p]) {
        for (int t = 0; t < page_; ++t) total += next[t];
        next += page_;
      }
      a_.out[part * a_.page_count + p] = weight * total / static_cast<float>(page_);
    }
  }

  const ScoreArgs& a_;
  const int page_;
};

static void score(const ScoreArgs& a) { PageScores(a).run(); }

}  // namespace MEMDECAY_ISA
}  // namespace memdecay
