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

// The three parts of each page's score; a part is the mean over the page's processed tokens.
class PageScores {
 public:
  explicit PageScores(const ScoreArgs& a) : a_(a), page_(a.page_size) {
    for (int r = 0; r < a.regions && r < W; ++r) {
      priority_[r] = a.base_priority[r];
      decay_[r] = a.decay[r];
    }
  }

  void run() {
    for (int64_t p = 0; p < a_.page_count; ++p) structure_and_magnitudes(p);
    if (a_.attention_ranks)
      ranked(1, a_.attention_weight, [&](int64_t at) { return load(a_.attention + at); },
             [&](int64_t at) { return a_.attention[at]; });
    if (a_.salience_ranks)
      ranked(2, a_.salience_weight_factor, [&](int64_t at) { return mean_salience(at); },
             [&](int64_t at) { return one_salience(at); });
  }

 private:
  vf mean_salience(int64_t at) const {
    return load(a_.salience_sum + at) / maximum(load(a_.salience_weight + at), splat(1.0f));
  }

  float one_salience(int64_t at) const { return a_.salience_sum[at] / std::max(a_.salience_weight[at], 1.0f); }

  void structure_and_magnitudes(int64_t p) {
    const int64_t first = a_.pages[p] * page_;
    const int64_t count = std::clamp<int64_t>(a_.processed_tokens - first, 0, page_);
    const bool attends = !a_.attention_ranks && a_.attention_weight != 0;
    const bool stands_out = !a_.salience_ranks && a_.salience_weight_factor != 0;
    vf structure = {}, attention = {}, salience = {};
    int64_t t = 0;
    for (; t + W <= count; t += W) {
      structure += structure_of(first + t);
      if (attends) attention += load(a_.attention + first + t);
      if (stands_out) salience += mean_salience(first + t);
    }
    float sums[3] = {horizontal_sum(structure), horizontal_sum(attention), horizontal_sum(salience)};
    for (; t < count; ++t) {
      const int64_t at = first + t;
      sums[0] += structure_of_one(at);
      if (attends) sums[1] += a_.attention[at];
      if (stands_out) sums[2] += one_salience(at);
    }
    const float share = 1.0f / static_cast<float>(std::max<int64_t>(count, 1));
    a_.out[p] = sums[0] * share;
    a_.out[a_.page_count + p] = sums[1] * share * a_.attention_weight;
    a_.out[2 * a_.page_count + p] = sums[2] * share * a_.salience_weight_factor;
  }

  // b g(age) of W tokens.
  vf structure_of(int64_t at) const {
    const vf age = ages(a_.clock_ticks, a_.refreshed_at_ticks + at);
    vb region, flags;
    std::memcpy(&region, a_.region + at, sizeof region);
    std::memcpy(&flags, a_.flags + at, sizeof flags);
    vf priority, decay;
    if (a_.regions <= W) {
      const vi index = __builtin_convertvector(region, vi);
      priority = __builtin_shuffle(priority_, index);
      decay = __builtin_shuffle(decay_, index);
    } else {
      for (int l = 0; l < W; ++l) {
        priority[l] = a_.base_priority[region[l]];
        decay[l] = a_.decay[region[l]];
      }
    }
    const vi superseded = __builtin_convertvector(flags & kSuperseded, vi) != 0;
    priority = superseded ? priority * a_.superseded_factor : priority;
    if (a_.power_law) return priority / (age / decay + 1.0f);
    return priority * exp_nonpositive(-(age * decay));
  }

  float structure_of_one(int64_t at) const {
    const float age = static_cast<float>(std::max<int64_t>(a_.clock_ticks - a_.refreshed_at_ticks[at], 0));
    const int region = a_.region[at];
    const float priority = a_.base_priority[region] * (a_.flags[at] & kSuperseded ? a_.superseded_factor : 1.0f);
    if (a_.power_law) return priority / (age / a_.decay[region] + 1.0f);
    return priority * exp_nonpositive(splat(-(age * a_.decay[region])))[0];
  }

  // `value` gives W tokens' values from a place on, `one_value` one.
  template <class Value, class OneValue>
  void ranked(int part, float weight, const Value& value, const OneValue& one_value) {
    static thread_local std::vector<float> values, ranks;
    const int64_t evictable = std::count_if(a_.evictable, a_.evictable + a_.page_count, [](uint8_t e) { return e; });
    values.resize(evictable * page_);
    ranks.resize(evictable * page_);
    float* next = values.data();
    for (int64_t p = 0; p < a_.page_count; ++p) {
      if (!a_.evictable[p]) continue;
      const int64_t first = a_.pages[p] * page_;
      int t = 0;
      for (; t + W <= page_; t += W) store(next + t, value(first + t));
      for (; t < page_; ++t) next[t] = one_value(first + t);
      next += page_;
    }
    unit_ranks(values.data(), evictable * page_, ranks.data());
    const float* rank = ranks.data();
    for (int64_t p = 0; p < a_.page_count; ++p) {
      float total = 0;
      if (a_.evictable[p]) {
        vf sum = {};
        int t = 0;
        for (; t + W <= page_; t += W) sum += load(rank + t);
        total = horizontal_sum(sum);
        for (; t < page_; ++t) total += rank[t];
        rank += page_;
      }
      a_.out[part * a_.page_count + p] = weight * total / static_cast<float>(page_);
    }
  }

  const ScoreArgs& a_;
  const int page_;
  vf priority_ = {}, decay_ = {};
};

static void score(const ScoreArgs& a) { PageScores(a).run(); }

}  // namespace MEMDECAY_ISA
}  // namespace memdecay
