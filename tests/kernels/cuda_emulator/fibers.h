// Threads of one block as fibers of one CPU thread, and the points where they have to meet.
//
// A fiber runs until it waits for others. Exchanges within a warp and barriers of the block are complete once
// every lane or thread that they name has arrived at the same place of the source; a thread that returned,
// or that waits somewhere else, makes the launch fail with a message.
#pragma once

#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {

struct Place {
    const char* file = "";
    int line = 0;
    bool operator==(const Place& other) const { return line == other.line && !std::strcmp(file, other.file); }
};

// What one lane brings to an exchange, and takes from it.
struct LaneData {
    unsigned words[6];
    float sums[4];
    int argument;
};

typedef void (*Combine)(LaneData (&lanes)[32]);

struct Meeting {
    Place place;
    int arrived = 0;
    unsigned generation = 0;
};

struct Warp {
    Meeting meeting;
    LaneData lanes[32];
    unsigned memory_epoch = 0;
};

struct Fiber {
    ucontext_t context;
    void* fake_stack = nullptr;
    char* stack = nullptr;
    bool finished = false;
    const Meeting* waits_for = nullptr;
    unsigned waits_generation = 0;
    Place place;
};

struct Dim3 {
    unsigned x, y, z;
};

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

class Block {
public:
    static Block* running;

    Block(Dim3 grid, Dim3 index, int threads, unsigned seed);
    void run(void (*body)(const void*), const void* argument);

    int thread() const { return current_; }
    void barrier(Place place);
    void exchange(Place place, Combine combine, LaneData& mine);
    unsigned block_epoch() const { return barrier_.generation; }
    unsigned warp_epoch(int thread) const { return warps_[thread / 32].memory_epoch; }

    const Dim3 grid, index;
    const int threads;

private:
    static void enter();
    void wait(const Meeting& meeting, unsigned generation, Place place);
    void resume(int thread);
    void leave(bool last_time);
    void finish();
    [[noreturn]] void report_stuck();

    std::vector<Fiber> fibers_;
    std::vector<Warp> warps_;
    Meeting barrier_;
    ucontext_t scheduler_;
    void* scheduler_fake_stack_ = nullptr;
    const void* scheduler_stack_ = nullptr;
    size_t scheduler_stack_bytes_ = 0;
    void (*body_)(const void*) = nullptr;
    const void* argument_ = nullptr;
    int current_ = -1;
    int finished_ = 0;
    std::mt19937 random_;
};

}  // namespace emulator
