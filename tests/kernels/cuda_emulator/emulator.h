// The names of device.cuh for the CPU: see fibers.h and shared_memory.h. Included by device.cuh.
#pragma once

#include <cmath>

#include "fibers.h"
#include "shared_memory.h"

#define MD_KERNEL(threads) [[maybe_unused]] static void
#define MD_PARAMETERS(Type) const Type&
#define MD_DEVICE static inline
#define MD_SHARED(Type, name, count)           \
    static const char name##_declaration = 0; \
    const ::emulator::SharedArray<Type> name(&name##_declaration, count, #name)
#define MD_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace memdecay {

inline int thread_index() { return emulator::Block::running->thread(); }
inline int block_threads() { return emulator::Block::running->threads; }
inline int block_x() { return (int)emulator::Block::running->index.x; }
inline int block_y() { return (int)emulator::Block::running->index.y; }
inline int block_z() { return (int)emulator::Block::running->index.z; }
inline int grid_y() { return (int)emulator::Block::running->grid.y; }

inline void block_barrier(MD_HERE) { emulator::Block::running->barrier({file, line}); }

inline void warp_barrier(MD_HERE) {
    emulator::LaneData nothing = {};
    emulator::Block::running->exchange({file, line}, nullptr, nothing);
}

template <typename Value>
Value exchange_with(emulator::Combine combine, Value value, int argument, emulator::Place place) {
    static_assert(sizeof(Value) == 4 || sizeof(Value) == 8, "lanes exchange words of 4 or 8 bytes");
    emulator::LaneData mine = {};
    std::memcpy(mine.words, &value, sizeof(Value));
    mine.argument = argument;
    emulator::Block::running->exchange(place, combine, mine);
    Value result;
    std::memcpy(&result, mine.words, sizeof(Value));
    return result;
}

template <int (*source)(int lane, int argument)>
void take_from(emulator::LaneData (&lanes)[32]) {
    unsigned before[32][2];
    for (int lane = 0; lane < 32; ++lane) std::memcpy(before[lane], lanes[lane].words, 8);
    for (int lane = 0; lane < 32; ++lane)
        std::memcpy(lanes[lane].words, before[source(lane, lanes[lane].argument)], 8);
}

inline int lane_xor(int lane, int bit) { return lane ^ bit; }
inline int lane_up(int lane, int distance) { return lane < distance ? lane : lane - distance; }
inline int lane_named(int, int named) { return named & 31; }

template <typename Value>
Value exchange_xor(Value value, int bit, MD_HERE) {
    return exchange_with(&take_from<lane_xor>, value, bit, {file, line});
}

template <typename Value>
Value exchange_up(Value value, int distance, MD_HERE) {
    return exchange_with(&take_from<lane_up>, value, distance, {file, line});
}

template <typename Value>
Value exchange_from(Value value, int lane, MD_HERE) {
    return exchange_with(&take_from<lane_named>, value, lane, {file, line});
}

inline void collect_votes(emulator::LaneData (&lanes)[32]) {
    u32 votes = 0;
    for (int lane = 0; lane < 32; ++lane) votes |= lanes[lane].words[0] << lane;
    for (int lane = 0; lane < 32; ++lane) lanes[lane].words[0] = votes;
}

inline u32 ballot(bool predicate, MD_HERE) {
    return exchange_with(&collect_votes, (u32)predicate, 0, {file, line});
}

inline int count_bits(u32 bits) { return __builtin_popcount(bits); }
inline float natural_log(float x) { return std::log(x); }

inline void stop_with_error() {
    emulator::fail("stopped: thread %d met an index that leads out of its array", thread_index());
}

inline float exp2_fast(float x) { return std::exp2(x); }
inline Words4 load_words4(const void* address) { return *static_cast<const Words4*>(address); }

// The whole tile from the lanes' parts, then the product in double precision, as wide as the hardware's sums.
template <float (*value_of)(u16)>
void multiply_lanes(emulator::LaneData (&lanes)[32]) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        for (int word = 0; word < 4; ++word)
            for (int half = 0; half < 2; ++half)
                a[lane / 4 + 8 * (word % 2)][2 * (lane % 4) + 8 * (word / 2) + half] =
                    value_of((u16)(lanes[lane].words[word] >> (16 * half)));
        for (int word = 0; word < 2; ++word)
            for (int half = 0; half < 2; ++half)
                b[2 * (lane % 4) + 8 * word + half][lane / 4] =
                    value_of((u16)(lanes[lane].words[4 + word] >> (16 * half)));
    }
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            double sum = lanes[lane].sums[i];
            for (int k = 0; k < 16; ++k) sum += (double)a[row][k] * b[k][column];
            lanes[lane].sums[i] = (float)sum;
        }
}

inline void multiply_with(emulator::Combine combine, float (&c)[4], const u32 (&words)[6], emulator::Place place) {
    emulator::LaneData mine = {};
    std::memcpy(mine.words, words, sizeof words);
    std::memcpy(mine.sums, c, sizeof c);
    emulator::Block::running->exchange(place, combine, mine);
    std::memcpy(c, mine.sums, sizeof c);
}

inline void multiply_tile_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, MD_HERE) {
    multiply_with(&multiply_lanes<float_of_bf16>, c, {a0, a1, a2, a3, b0, b1}, {file, line});
}

inline void multiply_tile_fp16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, MD_HERE) {
    multiply_with(&multiply_lanes<float_of_fp16>, c, {a0, a1, a2, a3, b0, b1}, {file, line});
}

}  // namespace memdecay
