// One measurement of attention mass taken into a session's columns: moving average, sum, salience, clocks.
// One thread a retained token; tokens differ, so that nothing is written twice.
#pragma once

#include "device.cuh"

namespace memdecay {

constexpr int kObserveThreads = 128;

enum Refresh { kNeverRefreshed = 0, kByRawMass = 1, kByRelativeMass = 2 };

struct ObserveParameters {
    i64* refreshed_at_ticks;      // columns of the session
    float* ewma_mass;
    float* accumulated_relative;
    float* salience_sum;
    float* salience_weight;
    float* last_query_mass;
    const i64* token_index;       // [count], rising
    const float* mass;            // [count]
    const float* newest_mass;     // [count]
    i64 clock_ticks, salience_min_age_tokens, capacity_tokens;
    int count, salience_neighbours, refresh;
    float keep;                   // of the moving average, for all represented queries
    float queries;                // represented
    float salience_floor_relative, refresh_threshold;
};

MD_DEVICE float floored(const ObserveParameters& p, int at) {
    const float relative = p.mass[at] * (float)p.count;
    return relative > p.salience_floor_relative ? relative : p.salience_floor_relative;
}

// log of a token's relative mass over the mean of itself and its neighbours.
MD_DEVICE float local_salience(const ObserveParameters& p, int at) {
    const int first = at > p.salience_neighbours ? at - p.salience_neighbours : 0;
    const int last = p.count - 1 - at > p.salience_neighbours ? at + p.salience_neighbours : p.count - 1;
    double sum = 0.0;
    for (int other = first; other <= last; ++other) sum += floored(p, other);
    return natural_log(floored(p, at) / (float)(sum / (last - first + 1)));
}

MD_KERNEL(kObserveThreads) observe_tokens(MD_PARAMETERS(ObserveParameters) p) {
    const int at = block_x() * kObserveThreads + thread_index();
    if (at >= p.count) return;
    const i64 token = p.token_index[at];
    if (token < 0 || token >= p.capacity_tokens) return stop_with_error();
    const float mass = p.mass[at], relative = mass * (float)p.count;
    p.ewma_mass[token] = ewma_step(p.ewma_mass[token], mass, p.keep);
    p.accumulated_relative[token] += p.queries * relative;
    p.last_query_mass[token] = p.newest_mass[at];
    if (token <= p.token_index[p.count - 1] - p.salience_min_age_tokens) {
        p.salience_sum[token] += p.queries * local_salience(p, at);
        p.salience_weight[token] += p.queries;
    }
    const float seen = p.refresh == kByRawMass ? mass : relative;
    if (p.refresh != kNeverRefreshed && seen > p.refresh_threshold) p.refreshed_at_ticks[token] = p.clock_ticks;
}

}  // namespace memdecay
