// Logits of one warp's tile: up to 16 query rows against 32 retained tokens, in two ways.
//
// A tile type says how its results lie in the lanes (kRows x kColumns values a lane) and which lanes, as
// bits of the lane index, hold other parts of the same row or of the same column.
#pragma once

#include "device.cuh"

namespace memdecay {

constexpr int kTileRows = 16;
constexpr int kTileTokens = 32;
constexpr int kUnusedRow = -1;

struct Bf16 {
    typedef u16 Storage;
    MD_DEVICE float load(const u16* at) { return float_of_bf16(*at); }
    MD_DEVICE void multiply_tile(float (&c)[4], const Words4& top, const Words4& low, const Words4& key, int half) {
        if (half == 0) multiply_tile_bf16(c, top.x, low.x, top.y, low.y, key.x, key.y);
        else multiply_tile_bf16(c, top.z, low.z, top.w, low.w, key.z, key.w);
    }
};

struct Fp16 {
    typedef u16 Storage;
    MD_DEVICE float load(const u16* at) { return float_of_fp16(*at); }
    MD_DEVICE void multiply_tile(float (&c)[4], const Words4& top, const Words4& low, const Words4& key, int half) {
        if (half == 0) multiply_tile_fp16(c, top.x, low.x, top.y, low.y, key.x, key.y);
        else multiply_tile_fp16(c, top.z, low.z, top.w, low.w, key.z, key.w);
    }
};

struct Fp32 {
    typedef float Storage;
    MD_DEVICE float load(const float* at) { return *at; }
};

// Tensor cores. A dot product may take its terms in any order, as long as both sides take the same one: so
// a lane reads 8 neighbouring elements of a key (16 bytes, and four lanes 64 bytes in a row) and hands them
// to the instruction as the two times four elements that its place asks for. Needs head_dim, all strides and
// all addresses in multiples of 8 elements.
template <typename Type>
struct MatrixTile {
    typedef Type Element;
    typedef typename Type::Storage Storage;
    static constexpr int kRows = 2;
    static constexpr int kColumns = 8;
    static constexpr int kKeys = 4;            // keys that a lane reads
    static constexpr unsigned kRowPeers = 3;   // lane bits that vary along a row
    static constexpr unsigned kColumnPeers = 28;

    MD_DEVICE int row(int i) { return lane_index() / 4 + 8 * i; }
    MD_DEVICE int column(int j) { return (j / 2) * 8 + (lane_index() % 4) * 2 + j % 2; }
    MD_DEVICE int key_column(int k) { return 8 * k + lane_index() / 4; }

    // row_offset: where each row's query begins in `query`, or kUnusedRow; key: this lane's keys.
    MD_DEVICE void logits(const Storage* query, const int (&row_offset)[kRows], const Storage* keys,
                          const i64 (&key_offset)[kKeys], int head_dim, float (&out)[kRows][kColumns]) {
        float c[kKeys][4];
        for (int k = 0; k < kKeys; ++k)
            for (int i = 0; i < 4; ++i) c[k][i] = 0.0f;
        const Words4 zero = {0, 0, 0, 0};
#pragma unroll 2
        for (int first = 0; first < head_dim; first += 32) {
            const int at = first + (lane_index() % 4) * 8;
            const bool inside = at < head_dim;
            const Words4 top = inside && row_offset[0] >= 0 ? load_words4(query + row_offset[0] + at) : zero;
            const Words4 low = inside && row_offset[1] >= 0 ? load_words4(query + row_offset[1] + at) : zero;
            Words4 key[kKeys];
#pragma unroll
            for (int k = 0; k < kKeys; ++k) key[k] = inside ? load_words4(keys + key_offset[k] + at) : zero;
#pragma unroll
            for (int k = 0; k < kKeys; ++k) {
                Type::multiply_tile(c[k], top, low, key[k], 0);
                Type::multiply_tile(c[k], top, low, key[k], 1);
            }
        }
#pragma unroll
        for (int k = 0; k < kKeys; ++k)
            for (int i = 0; i < 4; ++i) out[i / 2][2 * k + i % 2] = c[k][i];
    }
};

// Multiply-adds, one token a lane: for float32 keys, and for strides that allow no wide load.
template <typename Type>
struct ScalarTile {
    typedef Type Element;
    typedef typename Type::Storage Storage;
    static constexpr int kRows = kTileRows;
    static constexpr int kColumns = 1;
    static constexpr int kKeys = 1;
    static constexpr unsigned kRowPeers = 31;
    static constexpr unsigned kColumnPeers = 0;

    MD_DEVICE int row(int i) { return i; }
    MD_DEVICE int column(int) { return lane_index(); }
    MD_DEVICE int key_column(int) { return lane_index(); }

    MD_DEVICE void logits(const Storage* query, const int (&row_offset)[kRows], const Storage* keys,
                          const i64 (&key_offset)[kKeys], int head_dim, float (&out)[kRows][kColumns]) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) out[i][0] = 0.0f;
#pragma unroll 2
        for (int at = 0; at < head_dim; ++at) {
            const float key = Type::load(keys + key_offset[0] + at);
#pragma unroll
            for (int i = 0; i < kRows; ++i)
                if (row_offset[i] >= 0) out[i][0] += Type::load(query + row_offset[i] + at) * key;
        }
    }
};

}  // namespace memdecay
