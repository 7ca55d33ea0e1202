// Memory that a block shares: exact in size, filled with a pattern, and watched for races.
//
// Two accesses to one element, at least one of them a write, race unless a barrier of the block lies between
// them, or both are by one warp and a barrier of the warp does. Reads are remembered as the last one and
// whether other lanes or other warps read since the last barrier of the block.
#pragma once

#include <map>
#include <memory>
#include <type_traits>

#include "fibers.h"

namespace emulator {

struct Access {
    int thread = -1;  // -1: never
    unsigned block_epoch = 0, warp_epoch = 0;
    bool other_lanes = false, other_warps = false;
};

inline Access access_now() {
    const Block& block = *Block::running;
    Access now;
    now.thread = block.thread();
    now.block_epoch = block.block_epoch();
    now.warp_epoch = block.warp_epoch(now.thread);
    return now;
}

inline bool ordered(const Access& before, const Access& now) {
    if (before.thread < 0 || before.block_epoch != now.block_epoch) return true;
    if (before.other_warps || before.thread / 32 != now.thread / 32) return false;
    return before.warp_epoch != now.warp_epoch || (!before.other_lanes && before.thread == now.thread);
}

struct History {
    Access write, read;

    void note_read(const char* name, long long index) {
        const Access now = access_now();
        if (!ordered(write, now)) race(name, index, write, "wrote", now, "reads");
        Access merged = now;
        if (read.thread >= 0 && read.block_epoch == now.block_epoch) {
            merged.other_warps = read.other_warps || read.thread / 32 != now.thread / 32;
            if (read.warp_epoch == now.warp_epoch) merged.other_lanes = read.other_lanes || read.thread != now.thread;
        }
        read = merged;
    }
    void note_write(const char* name, long long index) {
        const Access now = access_now();
        if (!ordered(write, now)) race(name, index, write, "wrote", now, "writes");
        if (!ordered(read, now)) race(name, index, read, "read", now, "writes");
        write = now;
        read = Access();
    }
    [[noreturn]] static void race(const char* name, long long index, const Access& before, const char* did,
                                  const Access& now, const char* does) {
        fail("race: thread %d %s %s[%lld], and thread %d %s it without a barrier in between", before.thread, did, name,
             index, now.thread, does);
    }
};

struct Allocation {
    std::unique_ptr<char[]> bytes;
    std::unique_ptr<History[]> history;
};

// Of the running block, by the array's declaration; cleared between blocks.
inline std::map<const void*, Allocation>& shared_allocations() {
    static std::map<const void*, Allocation> allocations;
    return allocations;
}

template <typename Type>
class SharedArray {
    static_assert(std::is_scalar<Type>::value, "elements are scalars");

public:
    class Reference {
    public:
        Reference(Type* at, History* history, const char* name, long long index)
            : at_(at), history_(history), name_(name), index_(index) {}
        operator Type() const {
            history_->note_read(name_, index_);
            return *at_;
        }
        Reference& operator=(Type value) {
            history_->note_write(name_, index_);
            *at_ = value;
            return *this;
        }
        Reference& operator=(const Reference& other) { return *this = static_cast<Type>(other); }
        Reference& operator+=(Type value) { return *this = static_cast<Type>(*this) + value; }

    private:
        Type* at_;
        History* history_;
        const char* name_;
        long long index_;
    };

    SharedArray(const void* key, long long count, const char* name) : count_(count), name_(name) {
        Allocation& allocation = shared_allocations()[key];
        if (!allocation.bytes) {
            allocation.bytes.reset(new char[count * sizeof(Type)]);
            std::memset(allocation.bytes.get(), 0xFF, count * sizeof(Type));
            allocation.history.reset(new History[count]);
        }
        values_ = reinterpret_cast<Type*>(allocation.bytes.get());
        history_ = allocation.history.get();
    }
    Reference operator[](long long index) const {
        if (index < 0 || index >= count_)
            fail("out of bounds: thread %d uses %s[%lld] of %lld", Block::running->thread(), name_, index, count_);
        return Reference(values_ + index, history_ + index, name_, index);
    }

private:
    Type* values_;
    History* history_;
    long long count_;
    const char* name_;
};

}  // namespace emulator
