// The lowest-scoring evictable pages, in order: a page's place is the number of pages that go before it.
//
// Counting against all pages needs no sort, no atomics and no look at a result by the host: a page knows its own
// place, and writes itself there if the place is among the wanted ones.
#pragma once

#include "device.cuh"

namespace memdecay {

constexpr int kSelectThreads = 128;

struct SelectParameters {
    const float* scores;             // [page_count]
    const unsigned char* evictable;  // [page_count]
    i64* out;                        // [count]
    int page_count, count;
};

// A page's score, or NaN if it cannot be selected: NaN goes before nothing.
MD_DEVICE float candidate(const SelectParameters& p, int page) {
    return page < p.page_count && p.evictable[page] ? p.scores[page] : float_of_bits(0x7FC00000u);
}

MD_KERNEL(kSelectThreads) select_pages(MD_PARAMETERS(SelectParameters) p) {
    MD_SHARED(float, others, kSelectThreads);
    const int page = block_x() * kSelectThreads + thread_index();
    const float mine = candidate(p, page);
    int before = 0, candidates = 0;
#pragma unroll 1
    for (int first = 0; first < p.page_count; first += kSelectThreads) {
        block_barrier();  // everyone has read the tile before
        others[thread_index()] = candidate(p, first + thread_index());
        block_barrier();
#pragma unroll 8
        for (int i = 0; i < kSelectThreads; ++i) {
            const float other = others[i];
            before += other < mine || (other == mine && first + i < page);
            candidates += other == other;
        }
    }
    if (mine == mine && before < p.count) p.out[before] = page;
    if (page >= candidates && page < p.count) p.out[page] = -1;  // places that no page takes
}

}  // namespace memdecay
