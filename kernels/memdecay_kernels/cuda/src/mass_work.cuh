// The work of attention mass: its parameters, and which queries and keys are a lane's in one tile.
//
// Query rows of one key head are cut into tiles of 16. For the mean over heads the rows are numbered
// head-in-group * W + w without gaps; for the maximum each query head has a tile of its own.
#pragma once

#include "mass_tiles.cuh"

namespace memdecay {

constexpr int kMassWarps = 4;
constexpr int kSplitTokens = 256;
constexpr int kMaxLayers = 64;

struct RowStatistics {
    float maximum;  // of the logits, in units of log 2
    float sum;      // of 2^(logit - maximum); in the totals: 1 / (sum * W)
};

struct MassParameters {
    const void* query[kMaxLayers];  // [T, H, D]
    const void* keys[kMaxLayers];   // pages, by strides
    const int* block_table;         // [requests, table_columns]
    const int* context_lens;        // [requests]
    const int* query_ends;          // [requests]
    const int* windows;             // [requests]
    RowStatistics* statistics;      // [requests, layers, kv_heads, row_tiles, splits, 16]
    RowStatistics* totals;          // [requests, layers, kv_heads, row_tiles, 16]
    float* out;                     // [requests, max_context]
    i64 query_token_stride, query_head_stride;                 // elements
    i64 key_block_stride, key_token_stride, key_head_stride;   // elements
    i64 table_stride, out_stride;                              // elements
    int layers, kv_heads, group, head_dim, page_size, table_columns, max_context, max_window;
    int splits, row_tiles, layer_warps;  // layer_warps: warps that share a tile's layers, a divisor of 4
    int accumulate, reduce_max;
    float scale_log2;  // softmax scale / log 2
    float weight;      // of a layer's mass in the result
};

struct MassRequest {
    int tokens;  // 0: nothing to do
    int window;
    int row_tiles;
};

MD_DEVICE float lowest() { return float_of_bits(0xFF800000u); }  // -infinity

// Cut to what the tables hold, so that a wrong length reads no foreign memory.
MD_DEVICE MassRequest mass_request(const MassParameters& p, int request) {
    const int room = p.table_columns * p.page_size;
    int tokens = p.context_lens[request];
    tokens = tokens < room ? tokens : room;
    tokens = tokens < p.max_context ? tokens : p.max_context;
    int window = p.windows[request];
    window = window < p.max_window ? window : p.max_window;
    if (tokens <= 0 || window <= 0) return MassRequest{0, 0, 0};
    const int packed = (p.group * window + kTileRows - 1) / kTileRows;
    const int used = p.reduce_max ? p.group : packed;
    return MassRequest{tokens, window, used < p.row_tiles ? used : p.row_tiles};
}

// Which queries a lane's rows of a tile are: where each begins, and how many tokens it sees.
template <typename Tile>
MD_DEVICE void tile_rows(const MassParameters& p, const MassRequest& r, int request, int kv_head, int row_tile,
                         int (&offset)[Tile::kRows], int (&visible)[Tile::kRows]) {
    const int first_query = p.query_ends[request] - r.window;
#pragma unroll
    for (int i = 0; i < Tile::kRows; ++i) {
        const int flat = row_tile * kTileRows + Tile::row(i);
        const int head = p.reduce_max ? row_tile : flat / r.window;
        const int w = p.reduce_max ? Tile::row(i) : flat % r.window;
        const bool used = p.reduce_max ? w < r.window : head < p.group;
        const i64 begin = (first_query + w) * p.query_token_stride + (kv_head * p.group + head) * p.query_head_stride;
        offset[i] = used ? (int)begin : kUnusedRow;
        visible[i] = used ? r.tokens - (r.window - 1 - w) : 0;
    }
}

// Where this lane's keys of a tile begin, for head 0; tokens behind the end stand in as the last one.
template <typename Tile>
MD_DEVICE void tile_keys(const MassParameters& p, const MassRequest& r, int request, int first_token,
                         i64 (&offset)[Tile::kKeys]) {
#pragma unroll
    for (int k = 0; k < Tile::kKeys; ++k) {
        int token = first_token + Tile::key_column(k);
        token = token < r.tokens ? token : r.tokens - 1;
        const i64 page = p.block_table[request * p.table_stride + token / p.page_size];
        offset[k] = page * p.key_block_stride + token % p.page_size * p.key_token_stride;
    }
}

template <typename Tile>
MD_DEVICE void tile_logits(const MassParameters& p, int layer, int kv_head, const int (&rows)[Tile::kRows],
                           const i64 (&keys)[Tile::kKeys], float (&logit)[Tile::kRows][Tile::kColumns]) {
    typedef typename Tile::Storage Storage;
    const Storage* head_keys = (const Storage*)p.keys[layer] + kv_head * p.key_head_stride;
    Tile::logits((const Storage*)p.query[layer], rows, head_keys, keys, p.head_dim, logit);
#pragma unroll
    for (int i = 0; i < Tile::kRows; ++i)
        for (int j = 0; j < Tile::kColumns; ++j) logit[i][j] *= p.scale_log2;
}

}  // namespace memdecay
