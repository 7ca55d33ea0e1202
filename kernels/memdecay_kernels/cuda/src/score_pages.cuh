// The three parts of each page's score: structure b g(age), attention and salience, as means over its tokens.
//
//   rank_tokens   where a part is made of ranks: a token's rank is the number of smaller values and half of the
//                 other equal ones, counted against all values, which needs neither a sort nor atomics
//   score_parts   one warp a page
#pragma once

#include "device.cuh"

namespace memdecay {

constexpr int kRankThreads = 128;
constexpr int kScoreThreads = 128;
constexpr int kSupersededFlag = 2;
constexpr int kRankedColumns = 2;  // attention, salience

struct ScoreParameters {
    const signed char* region;     // columns of the session
    const signed char* flags;
    const i64* refreshed_at_ticks;
    const float* attention;
    const float* salience_sum;
    const float* salience_weight;
    const float* base_priority;    // [regions]
    const float* decay;            // [regions]: half-life with power_law, else rate
    const i64* pages;              // [page_count]
    const unsigned char* evictable;  // [page_count]
    float* ranks;                  // [2, page_count * page_size]
    float* out;                    // [3, page_count]
    i64 processed_tokens, clock_ticks, capacity_tokens;
    int page_count, page_size, regions, power_law;
    int attention_ranks, salience_ranks;
    float superseded_factor, attention_factor, salience_factor;
};

MD_DEVICE float not_a_number() { return float_of_bits(0x7FC00000u); }

MD_DEVICE float column_value(const ScoreParameters& p, int column, i64 token) {
    if (column == 0) return p.attention[token];
    const float weight = p.salience_weight[token];
    return p.salience_sum[token] / (weight > 1.0f ? weight : 1.0f);
}

// A value that takes part in the ranking, or NaN, which is neither smaller nor equal to anything.
MD_DEVICE float ranked_value(const ScoreParameters& p, int column, int at) {
    if (at >= p.page_count * p.page_size || !p.evictable[at / p.page_size]) return not_a_number();
    return column_value(p, column, p.pages[at / p.page_size] * p.page_size + at % p.page_size);
}

template <typename Value>
MD_DEVICE Value warp_sum(Value value) {
    for (int bit = kWarpLanes / 2; bit > 0; bit /= 2) value += exchange_xor(value, bit);
    return value;
}

MD_KERNEL(kRankThreads) rank_tokens(MD_PARAMETERS(ScoreParameters) p) {
    MD_SHARED(float, others, kRankThreads);
    MD_SHARED(int, warp_ranked, kRankThreads / kWarpLanes);
    const int column = p.attention_ranks && block_y() == 0 ? 0 : 1;
    const int tokens = p.page_count * p.page_size;
    const int at = block_x() * kRankThreads + thread_index();
    const float mine = ranked_value(p, column, at);
    int smaller = 0, equal = 0, seen = 0;
#pragma unroll 1
    for (int first = 0; first < tokens; first += kRankThreads) {
        const float value = ranked_value(p, column, first + thread_index());
        seen += value == value;
        block_barrier();  // everyone has read the tile before
        others[thread_index()] = value;
        block_barrier();
#pragma unroll 8
        for (int i = 0; i < kRankThreads; ++i) {
            const float other = others[i];
            smaller += other < mine;
            equal += other == mine;
        }
    }
    seen = warp_sum(seen);
    if (lane_index() == 0) warp_ranked[warp_index()] = seen;
    block_barrier();
    if (at >= tokens) return;
    int ranked = 0;
    for (int warp = 0; warp < kRankThreads / kWarpLanes; ++warp) ranked += warp_ranked[warp];
    const float rank = 0.5f * (float)(2 * smaller + equal - 1);
    const float unit = ranked > 1 ? rank / (float)(ranked - 1) : 0.5f;
    p.ranks[(i64)column * tokens + at] = mine == mine ? unit : 0.0f;
}

MD_DEVICE float token_structure(const ScoreParameters& p, i64 token) {
    const int region = p.region[token];
    if (region < 0 || region >= p.regions) return not_a_number();
    const i64 ticks = p.clock_ticks - p.refreshed_at_ticks[token];
    const float age = (float)(ticks > 0 ? ticks : 0);
    const float decay = p.power_law ? power_law_decay(p.decay[region], age) : exponential_decay(p.decay[region], age);
    const float factor = p.flags[token] & kSupersededFlag ? p.superseded_factor : 1.0f;
    return p.base_priority[region] * factor * decay;
}

MD_KERNEL(kScoreThreads) score_parts(MD_PARAMETERS(ScoreParameters) p) {
    const int row = block_x() * (kScoreThreads / kWarpLanes) + warp_index();
    if (row >= p.page_count) return;  // the whole warp
    const i64 first = p.pages[row] * p.page_size;
    if (first < 0 || first + p.page_size > p.capacity_tokens) return stop_with_error();
    const i64 left = p.processed_tokens - first;
    const int count = left < 0 ? 0 : (left < p.page_size ? (int)left : p.page_size);
    const i64 tokens = (i64)p.page_count * p.page_size, ranks = (i64)row * p.page_size;
    float structure = 0.0f, attention = 0.0f, salience = 0.0f;
    for (int at = lane_index(); at < count; at += kWarpLanes) {
        structure += token_structure(p, first + at);
        attention += p.attention_ranks ? p.ranks[ranks + at] : column_value(p, 0, first + at);
        salience += p.salience_ranks ? p.ranks[tokens + ranks + at] : column_value(p, 1, first + at);
    }
    structure = warp_sum(structure);
    attention = warp_sum(attention);
    salience = warp_sum(salience);
    if (lane_index() != 0) return;
    const float share = (float)(count > 0 ? count : 1);
    p.out[row] = structure / share;
    p.out[p.page_count + row] = p.attention_factor * (attention / share);
    p.out[2 * p.page_count + row] = p.salience_factor * (salience / share);
}

}  // namespace memdecay
