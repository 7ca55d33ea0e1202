// Attention mass of the newest queries on every retained token, for all requests and layers of a step.
//
// Three kernels, since a weight is known only once its row's sum is:
//   statistics   block = (split of 256 tokens, a layer's key head, request): each row's largest logit and sum
//   totals       block = (row tile, request): the splits' statistics, joined in their order
//   mass         warp = 32 tokens of a request: all layers and heads one after another, so that the sum over
//                heads needs no atomics, and keys are read from cache where they still are
// Every split and every order follows from one request's own numbers: a request's mass is the same to the last
// bit alone and in any batch.
#pragma once

#include "mass_work.cuh"

namespace memdecay {

// The statistics of two disjoint sets of tokens, joined.
MD_DEVICE RowStatistics join(const RowStatistics& a, const RowStatistics& b) {
    const float maximum = a.maximum > b.maximum ? a.maximum : b.maximum;
    if (maximum == lowest()) return a;
    return RowStatistics{maximum, a.sum * exp2_fast(a.maximum - maximum) + b.sum * exp2_fast(b.maximum - maximum)};
}

// One row tile's statistics over this warp's share of a split, still apart in the lanes of a row.
template <typename Tile>
MD_DEVICE void warp_statistics(const MassParameters& p, const MassRequest& r, int request, int layer, int kv_head,
                               int row_tile, int begin, int end, RowStatistics (&mine)[Tile::kRows]) {
    int rows[Tile::kRows], visible[Tile::kRows];
    tile_rows<Tile>(p, r, request, kv_head, row_tile, rows, visible);
#pragma unroll
    for (int i = 0; i < Tile::kRows; ++i) mine[i] = RowStatistics{lowest(), 0.0f};
#pragma unroll 1
    for (int first = begin + warp_index() * kTileTokens; first < end; first += kMassWarps * kTileTokens) {
        i64 keys[Tile::kKeys];
        float logit[Tile::kRows][Tile::kColumns];
        tile_keys<Tile>(p, r, request, first, keys);
        tile_logits<Tile>(p, layer, kv_head, rows, keys, logit);
#pragma unroll
        for (int i = 0; i < Tile::kRows; ++i) {
            float maximum = lowest();
#pragma unroll
            for (int j = 0; j < Tile::kColumns; ++j) {
                if (first + Tile::column(j) >= visible[i]) logit[i][j] = lowest();
                maximum = logit[i][j] > maximum ? logit[i][j] : maximum;
            }
            if (maximum == lowest()) continue;  // this lane sees nothing of the row here
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < Tile::kColumns; ++j) sum += exp2_fast(logit[i][j] - maximum);
            mine[i] = join(mine[i], RowStatistics{maximum, sum});
        }
    }
}

// The row tiles of a key head are taken one after another, so that all but the first find the keys in the
// multiprocessor's own cache.
template <typename Tile>
MD_DEVICE void mass_statistics(const MassParameters& p) {
    MD_SHARED(float, warp_maximum, kMassWarps * kTileRows);
    MD_SHARED(float, warp_sum, kMassWarps * kTileRows);
    const int request = block_z(), split = block_x();
    const int kv_head = block_y() % p.kv_heads, layer = block_y() / p.kv_heads;
    const MassRequest r = mass_request(p, request);
    const int begin = split * kSplitTokens;
    if (begin >= r.tokens) return;  // the whole block
    const int end = begin + kSplitTokens < r.tokens ? begin + kSplitTokens : r.tokens;
    const i64 first_tile = (((i64)request * p.layers + layer) * p.kv_heads + kv_head) * p.row_tiles;
#pragma unroll 1
    for (int row_tile = 0; row_tile < r.row_tiles; ++row_tile) {
        RowStatistics mine[Tile::kRows];
        warp_statistics<Tile>(p, r, request, layer, kv_head, row_tile, begin, end, mine);
        block_barrier();  // everyone has read the statistics before
#pragma unroll
        for (int i = 0; i < Tile::kRows; ++i) {
#pragma unroll
            for (unsigned bit = 1; bit < kWarpLanes; bit *= 2) {
                if (!(Tile::kRowPeers & bit)) continue;
                const RowStatistics other = {exchange_xor(mine[i].maximum, bit), exchange_xor(mine[i].sum, bit)};
                // the same operands in the same order on both sides
                mine[i] = lane_index() & bit ? join(other, mine[i]) : join(mine[i], other);
            }
            if ((lane_index() & Tile::kRowPeers) == 0) {
                warp_maximum[warp_index() * kTileRows + Tile::row(i)] = mine[i].maximum;
                warp_sum[warp_index() * kTileRows + Tile::row(i)] = mine[i].sum;
            }
        }
        block_barrier();
        if (thread_index() < kTileRows) {
            RowStatistics whole = {lowest(), 0.0f};
            for (int warp = 0; warp < kMassWarps; ++warp) {
                const int at = warp * kTileRows + thread_index();
                whole = join(whole, RowStatistics{warp_maximum[at], warp_sum[at]});
            }
            p.statistics[((first_tile + row_tile) * p.splits + split) * kTileRows + thread_index()] = whole;
        }
    }
}

MD_DEVICE void mass_totals(const MassParameters& p) {
    const int request = block_y(), row_tile = block_x() % p.row_tiles;
    const MassRequest r = mass_request(p, request);
    if (row_tile >= r.row_tiles) return;  // the whole block
    const int splits = (r.tokens + kSplitTokens - 1) / kSplitTokens;
    const int row = lane_index() % kTileRows, half = lane_index() / kTileRows;
    const i64 tile = (i64)request * p.layers * p.kv_heads * p.row_tiles + block_x();
    RowStatistics whole = {lowest(), 0.0f};
    for (int split = half; split < splits; split += 2)
        whole = join(whole, p.statistics[(tile * p.splits + split) * kTileRows + row]);
    const RowStatistics other = {exchange_xor(whole.maximum, kTileRows), exchange_xor(whole.sum, kTileRows)};
    if (half == 0) {
        whole = join(whole, other);
        const bool seen = whole.maximum != lowest();
        p.totals[tile * kTileRows + row] = RowStatistics{seen ? whole.maximum : 0.0f,
                                                         seen ? 1.0f / (whole.sum * r.window) : 0.0f};
    }
}

// The columns' sums over the lanes that hold other rows of them.
template <typename Tile>
MD_DEVICE float sum_of_column(float part) {
#pragma unroll
    for (unsigned bit = 1; bit < kWarpLanes; bit *= 2)
        if (Tile::kColumnPeers & bit) part += exchange_xor(part, bit);
    return part;
}

// One layer's mass on this lane's columns: the maximum over heads, or their sum, still to be added over
// kColumnPeers.
template <typename Tile>
MD_DEVICE void layer_mass(const MassParameters& p, const MassRequest& r, int request, int layer, int first_token,
                          const i64 (&keys)[Tile::kKeys], float (&mass)[Tile::kColumns]) {
#pragma unroll
    for (int j = 0; j < Tile::kColumns; ++j) mass[j] = 0.0f;
#pragma unroll 1
    for (int kv_head = 0; kv_head < p.kv_heads; ++kv_head) {
#pragma unroll 1
        for (int row_tile = 0; row_tile < r.row_tiles; ++row_tile) {
            int rows[Tile::kRows], visible[Tile::kRows];
            float logit[Tile::kRows][Tile::kColumns];
            tile_rows<Tile>(p, r, request, kv_head, row_tile, rows, visible);
            tile_logits<Tile>(p, layer, kv_head, rows, keys, logit);
            const i64 tile = (((i64)request * p.layers + layer) * p.kv_heads + kv_head) * p.row_tiles + row_tile;
#pragma unroll
            for (int i = 0; i < Tile::kRows; ++i) {
                const bool used = rows[i] != kUnusedRow;
                const RowStatistics nothing = {0.0f, 0.0f};
                const RowStatistics total = used ? p.totals[tile * kTileRows + Tile::row(i)] : nothing;
#pragma unroll
                for (int j = 0; j < Tile::kColumns; ++j) {
                    const bool seen = first_token + Tile::column(j) < visible[i];
                    logit[i][j] = seen ? exp2_fast(logit[i][j] - total.maximum) * total.sum : 0.0f;
                }
            }
#pragma unroll
            for (int j = 0; j < Tile::kColumns; ++j) {
                float added = 0.0f;
#pragma unroll
                for (int i = 0; i < Tile::kRows; ++i) added += logit[i][j];
                if (p.reduce_max) {
                    added = sum_of_column<Tile>(added);
                    mass[j] = added > mass[j] ? added : mass[j];
                } else {
                    mass[j] += added;
                }
            }
        }
    }
}

template <typename Tile>
MD_DEVICE void mass_of_tokens(const MassParameters& p) {
    MD_SHARED(float, warp_mass, kMassWarps * kTileTokens);
    // the last request first: its keys were read last, and are the ones that the cache still holds
    const int request = grid_y() - 1 - block_y(), tiles = kMassWarps / p.layer_warps;
    const int first_token = (block_x() * tiles + warp_index() / p.layer_warps) * kTileTokens;
    const MassRequest r = mass_request(p, request);
    const bool writes = (lane_index() & Tile::kColumnPeers) == 0;
    if (writes) {
#pragma unroll
        for (int j = 0; j < Tile::kColumns; ++j) warp_mass[warp_index() * kTileTokens + Tile::column(j)] = 0.0f;
    }
    if (first_token < r.tokens) {  // the whole warp
        i64 keys[Tile::kKeys];
        tile_keys<Tile>(p, r, request, first_token, keys);
#pragma unroll 1
        for (int layer = warp_index() % p.layer_warps; layer < p.layers; layer += p.layer_warps) {
            float mass[Tile::kColumns];
            layer_mass<Tile>(p, r, request, layer, first_token, keys, mass);
#pragma unroll
            for (int j = 0; j < Tile::kColumns; ++j) {
                const float whole = p.reduce_max ? mass[j] : sum_of_column<Tile>(mass[j]);
                if (writes) warp_mass[warp_index() * kTileTokens + Tile::column(j)] += whole;
            }
        }
    }
    block_barrier();
    const int token = block_x() * tiles * kTileTokens + thread_index();
    if (thread_index() >= tiles * kTileTokens || token >= p.max_context) return;
    float* out = p.out + request * p.out_stride + token;
    if (token >= r.tokens) {
        if (!p.accumulate) *out = 0.0f;
        return;
    }
    const int first_warp = thread_index() / kTileTokens * p.layer_warps;
    float total = 0.0f;
    for (int warp = first_warp; warp < first_warp + p.layer_warps; ++warp)
        total += warp_mass[warp * kTileTokens + thread_index() % kTileTokens];
    const float heads = p.reduce_max ? 1.0f : (float)(p.kv_heads * p.group);
    total = total * p.weight / heads;
    *out = p.accumulate ? *out + total : total;
}

#define MD_MASS_KERNELS(suffix, Tile)                                                                             \
    MD_KERNEL(kMassWarps* kWarpLanes) mass_statistics_##suffix(MD_PARAMETERS(MassParameters) p) {                 \
        mass_statistics<Tile>(p);                                                                                 \
    }                                                                                                             \
    MD_KERNEL(kMassWarps* kWarpLanes) mass_of_tokens_##suffix(MD_PARAMETERS(MassParameters) p) {                  \
        mass_of_tokens<Tile>(p);                                                                                  \
    }

MD_MASS_KERNELS(bf16, MatrixTile<Bf16>)
MD_MASS_KERNELS(fp16, MatrixTile<Fp16>)
MD_MASS_KERNELS(bf16_strided, ScalarTile<Bf16>)
MD_MASS_KERNELS(fp16_strided, ScalarTile<Fp16>)
MD_MASS_KERNELS(fp32, ScalarTile<Fp32>)
#undef MD_MASS_KERNELS

MD_KERNEL(kWarpLanes) mass_totals_of_rows(MD_PARAMETERS(MassParameters) p) { mass_totals(p); }

}  // namespace memdecay
