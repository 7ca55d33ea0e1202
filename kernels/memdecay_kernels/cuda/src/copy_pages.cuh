// Whole pages from one cache to another; either may be pinned memory of the host. One row of blocks a page.
#pragma once

#include "device.cuh"

namespace memdecay {

constexpr int kCopyThreads = 256;
constexpr int kCopyWordsOfThread = 4;

struct CopyParameters {
    const unsigned char* source;
    unsigned char* target;
    const i64* source_pages;  // [count]
    const i64* target_pages;  // [count], distinct
    i64 source_stride, target_stride, page_bytes;  // bytes
    i64 source_page_count, target_page_count;
};

template <typename Word>
MD_DEVICE void copy_words(const CopyParameters& p) {
    const i64 from = p.source_pages[block_y()], to = p.target_pages[block_y()];
    if (from < 0 || from >= p.source_page_count || to < 0 || to >= p.target_page_count) return stop_with_error();
    const Word* source = (const Word*)(p.source + from * p.source_stride);
    Word* target = (Word*)(p.target + to * p.target_stride);
    const i64 words = p.page_bytes / (i64)sizeof(Word);
    const i64 first = (i64)block_x() * kCopyThreads * kCopyWordsOfThread + thread_index();
    Word held[kCopyWordsOfThread] = {};
#pragma unroll
    for (int i = 0; i < kCopyWordsOfThread; ++i)
        if (first + i * kCopyThreads < words) held[i] = source[first + i * kCopyThreads];
#pragma unroll
    for (int i = 0; i < kCopyWordsOfThread; ++i)
        if (first + i * kCopyThreads < words) target[first + i * kCopyThreads] = held[i];
}

MD_KERNEL(kCopyThreads) copy_pages_wide(MD_PARAMETERS(CopyParameters) p) { copy_words<Words4>(p); }
MD_KERNEL(kCopyThreads) copy_pages_bytes(MD_PARAMETERS(CopyParameters) p) { copy_words<unsigned char>(p); }

}  // namespace memdecay
