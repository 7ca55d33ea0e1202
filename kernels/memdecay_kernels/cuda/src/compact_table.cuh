// Block-table rows without their evicted entries: one block a row, a running count of what is kept.
#pragma once

#include "device.cuh"

namespace memdecay {

constexpr int kCompactThreads = 256;
constexpr int kCompactWarps = kCompactThreads / kWarpLanes;

struct CompactParameters {
    const int* block_table;      // [rows, columns]
    const int* seq_lens;         // [rows], tokens
    int* out_table;              // [rows, out_columns]; none of it is block_table
    int* kept_tokens;            // [rows]
    unsigned char* kept_pages;   // [rows, columns], or null
    i64 table_stride, out_stride;
    int columns, out_columns, page_size, null_page;
    int empty_rows_keep_length;  // rows without any kept page: of dummy requests
};

MD_KERNEL(kCompactThreads) compact_table(MD_PARAMETERS(CompactParameters) p) {
    MD_SHARED(int, warp_kept, kCompactWarps);
    const int row = block_x(), length = p.seq_lens[row];
    const int pages = length <= 0 ? 0 : (length - 1) / p.page_size + 1;
    const int used_pages = pages < p.columns ? pages : p.columns;
    const int* table = p.block_table + row * p.table_stride;
    int* out = p.out_table + row * p.out_stride;
    int kept_before = 0;
#pragma unroll 1
    for (int first = 0; first < p.columns; first += kCompactThreads) {
        const int column = first + thread_index();
        const int page = column < used_pages ? table[column] : p.null_page;
        const bool kept = column < used_pages && page != p.null_page;
        const u32 votes = ballot(kept);
        if (lane_index() == 0) warp_kept[warp_index()] = count_bits(votes);
        block_barrier();
        int before = kept_before, all = 0;
        for (int warp = 0; warp < kCompactWarps; ++warp) {
            const int in_warp = warp_kept[warp];
            before += warp < warp_index() ? in_warp : 0;
            all += in_warp;
        }
        block_barrier();  // everyone has read the counts
        const u32 lanes_before = (1u << lane_index()) - 1u;
        if (kept) out[before + count_bits(votes & lanes_before)] = page;
        if (p.kept_pages && column < p.columns) p.kept_pages[(i64)row * p.columns + column] = kept;
        kept_before += all;
    }
    for (int column = kept_before + thread_index(); column < p.out_columns; column += kCompactThreads) out[column] = 0;
    if (thread_index() == 0) {
        const bool stays = p.empty_rows_keep_length && kept_before == 0;
        p.kept_tokens[row] = stays ? length : length - (used_pages - kept_before) * p.page_size;
    }
}

}  // namespace memdecay
