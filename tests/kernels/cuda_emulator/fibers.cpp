#include "fibers.h"

#include <algorithm>
#include <cstdarg>
#include <numeric>

namespace emulator {

static const size_t kStackBytes = 128 * 1024;
Block* Block::running = nullptr;

void fail(const char* format, ...) {
    va_list values;
    va_start(values, format);
    std::fprintf(stderr, "emulator: ");
    std::vfprintf(stderr, format, values);
    std::fprintf(stderr, "\n");
    va_end(values);
    std::fflush(stderr);
    _exit(3);
}

// Stacks are kept from one block to the next.
static char* stack_of(int thread) {
    static std::vector<char*> stacks;
    while ((int)stacks.size() <= thread) stacks.push_back(static_cast<char*>(std::malloc(kStackBytes)));
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stacks[thread], kStackBytes);
#endif
    return stacks[thread];
}

Block::Block(Dim3 grid_, Dim3 index_, int threads_, unsigned seed)
    : grid(grid_), index(index_), threads(threads_), fibers_(threads_), warps_((threads_ + 31) / 32), random_(seed) {
    if (threads_ <= 0 || threads_ > 1024 || threads_ % 32) fail("a block of %d threads", threads_);
}

void Block::run(void (*body)(const void*), const void* argument) {
    body_ = body;
    argument_ = argument;
    running = this;
    for (int thread = 0; thread < threads; ++thread) {
        Fiber& fiber = fibers_[thread];
        fiber.stack = stack_of(thread);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, &Block::enter, 0);
    }
    std::vector<int> order(threads);
    std::iota(order.begin(), order.end(), 0);
    while (finished_ < threads) {
        std::shuffle(order.begin(), order.end(), random_);
        bool progress = false;
        for (int thread : order) {
            Fiber& fiber = fibers_[thread];
            if (fiber.finished) continue;
            if (fiber.waits_for && fiber.waits_for->generation == fiber.waits_generation) continue;
            resume(thread);
            progress = true;
        }
        if (!progress) report_stuck();
    }
    running = nullptr;
}

void Block::resume(int thread) {
    current_ = thread;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&scheduler_fake_stack_, fibers_[thread].stack, kStackBytes);
#endif
    swapcontext(&scheduler_, &fibers_[thread].context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
#endif
}

void Block::leave(bool last_time) {
    Fiber& fiber = fibers_[current_];
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(last_time ? nullptr : &fiber.fake_stack, scheduler_stack_, scheduler_stack_bytes_);
#else
    (void)last_time;
#endif
    swapcontext(&fiber.context, &scheduler_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fibers_[current_].fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

void Block::enter() {
    Block& block = *running;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &block.scheduler_stack_, &block.scheduler_stack_bytes_);
#endif
    block.body_(block.argument_);
    block.finish();
}

void Block::finish() {
    Fiber& fiber = fibers_[current_];
    fiber.finished = true;
    ++finished_;
    const Meeting& meeting = warps_[current_ / 32].meeting;
    if (meeting.arrived)
        fail("divergence: thread %d returned while others of its warp wait in an exchange at %s:%d", current_,
             meeting.place.file, meeting.place.line);
    if (barrier_.arrived)
        fail("divergence: thread %d returned while others wait in a barrier at %s:%d", current_, barrier_.place.file,
             barrier_.place.line);
    leave(true);
}

void Block::wait(const Meeting& meeting, unsigned generation, Place place) {
    Fiber& fiber = fibers_[current_];
    fiber.waits_for = &meeting;
    fiber.waits_generation = generation;
    fiber.place = place;
    leave(false);
    fibers_[current_].waits_for = nullptr;
}

static void arrive(Meeting& meeting, Place place, const char* what, int thread) {
    if (meeting.arrived && !(meeting.place == place))
        fail("divergence: thread %d is in a %s at %s:%d, others in one at %s:%d", thread, what, place.file, place.line,
             meeting.place.file, meeting.place.line);
    meeting.place = place;
    ++meeting.arrived;
}

static void complete(Meeting& meeting) {
    meeting.arrived = 0;
    ++meeting.generation;
}

void Block::barrier(Place place) {
    if (finished_) fail("divergence: thread %d is in a barrier at %s:%d, and %d threads returned before it", current_,
                        place.file, place.line, finished_);
    const unsigned generation = barrier_.generation;
    arrive(barrier_, place, "barrier", current_);
    if (barrier_.arrived == threads) complete(barrier_);
    else wait(barrier_, generation, place);
}

void Block::exchange(Place place, Combine combine, LaneData& mine) {
    Warp& warp = warps_[current_ / 32];
    const int lane = current_ % 32, first = current_ - lane;
    for (int other = first; other < first + 32; ++other)
        if (fibers_[other].finished)
            fail("divergence: thread %d is in an exchange at %s:%d, and thread %d of its warp returned before it",
                 current_, place.file, place.line, other);
    const unsigned generation = warp.meeting.generation;
    arrive(warp.meeting, place, "exchange", current_);
    warp.lanes[lane] = mine;
    if (warp.meeting.arrived == 32) {
        if (combine) combine(warp.lanes);
        else ++warp.memory_epoch;  // a barrier of the warp
        complete(warp.meeting);
    } else {
        wait(warp.meeting, generation, place);
    }
    mine = warps_[current_ / 32].lanes[current_ % 32];
}

void Block::report_stuck() {
    for (int thread = 0; thread < threads; ++thread) {
        const Fiber& fiber = fibers_[thread];
        if (fiber.finished || thread % 32 == 0 || !(fiber.place == fibers_[thread - 1].place))
            std::fprintf(stderr, "emulator: thread %d %s %s:%d\n", thread,
                         fiber.finished ? "has returned," : "waits at", fiber.place.file, fiber.place.line);
    }
    fail("divergence: no thread of block (%u, %u, %u) can go on", index.x, index.y, index.z);
}

}  // namespace emulator
