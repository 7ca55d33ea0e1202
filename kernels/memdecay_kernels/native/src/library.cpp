// The library's entry points: the choice of an instruction set at run time, and what needs none.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include <omp.h>

#include "api.h"
#include "ranks.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace memdecay {

const Table& table_portable();
#if defined(__x86_64__)
const Table& table_avx2();
const Table& table_avx512();
const Table& table_avx512bf16();
const Table& table_amx();

// Linux gives a process the matrix unit's large state on request only, once.
static bool amx_granted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

static bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
static bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
static bool has_amx() {
  uint32_t a = 7, b, c = 0, d;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  const bool tile = d >> 24 & 1, bf16 = d >> 22 & 1;
  return tile && bf16 && has_avx512bf16() && amx_granted();
}
#endif

// Instruction sets by number, the best last; null where the processor or the build lacks one.
static const Table* const* tables() {
  static const Table* const found[] = {
      &table_portable(),
#if defined(__x86_64__)
      has_avx2() ? &table_avx2() : nullptr,
      has_avx512() ? &table_avx512() : nullptr,
      has_avx512bf16() ? &table_avx512bf16() : nullptr,
      has_amx() ? &table_amx() : nullptr,
#endif
  };
  return found;
}
#if defined(__x86_64__)
constexpr int kTables = 5;
#else
constexpr int kTables = 1;
#endif

template <class Args>
static int run(const Args* args, void (*operation)(const Args&)) {
  if (args->size_bytes != static_cast<int64_t>(sizeof(Args))) return 1;
  operation(*args);
  return 0;
}

static void select(const SelectArgs& a) {
  static thread_local std::vector<int64_t> candidates;
  candidates.clear();
  for (int64_t p = 0; p < a.page_count; ++p)
    if (a.evictable[p]) candidates.push_back(p);
  auto before = [&](int64_t x, int64_t y) { return a.scores[x] < a.scores[y] || (a.scores[x] == a.scores[y] && x < y); };
  const int64_t chosen = std::min<int64_t>(a.count, static_cast<int64_t>(candidates.size()));
  if (chosen < static_cast<int64_t>(candidates.size()))
    std::nth_element(candidates.begin(), candidates.begin() + chosen, candidates.end(), before);
  std::sort(candidates.begin(), candidates.begin() + chosen, before);
  std::copy_n(candidates.begin(), chosen, a.out);
  std::fill(a.out + chosen, a.out + a.count, -1);
}

// Region of most of a page's tokens (on a tie the one of higher rank), and whether it is pinned or superseded.
static void facts(const FactsArgs& a) {
  constexpr int8_t kSuperseded = 2;
  std::vector<int64_t> count(a.regions);
  for (int64_t p = 0; p < a.page_count; ++p) {
    const int64_t first = a.pages[p] * a.page_size;
    const int64_t registered = std::clamp<int64_t>(a.registered_tokens - first, 0, a.page_size);
    std::fill(count.begin(), count.end(), 0);
    int64_t superseded = 0;
    bool pinned = false;
    for (int t = 0; t < a.page_size; ++t) {
      pinned |= a.pinned[first + t] != 0;
      superseded += (a.flags[first + t] & kSuperseded) != 0;
    }
    for (int64_t t = 0; t < registered; ++t) ++count[a.region[first + t]];
    int best = 0;
    for (int r = 1; r < a.regions; ++r)
      if (count[r] * a.regions + a.tie_rank[r] > count[best] * a.regions + a.tie_rank[best]) best = r;
    a.page_region[p] = static_cast<int8_t>(best);
    a.page_pinned[p] = pinned;
    a.page_superseded[p] = superseded * 2 > registered;
  }
}

static void compact(const CompactArgs& a) {
  for (int32_t r = 0; r < a.rows; ++r) {
    const int32_t* row = a.block_table + r * a.table_stride;
    int32_t* out = a.out_table + r * a.out_stride;
    uint8_t* kept = a.kept_pages + static_cast<int64_t>(r) * a.columns;
    const int32_t used = std::clamp((a.seq_lens[r] + a.page_size - 1) / a.page_size, 0, a.columns);
    int32_t next = 0;
    for (int32_t p = 0; p < used; ++p) {
      kept[p] = row[p] != a.null_page;
      if (kept[p]) out[next++] = row[p];
    }
    std::fill(out + next, out + a.columns, 0);
    std::fill(kept + used, kept + a.columns, 0);
    a.kept_tokens[r] = a.seq_lens[r] - (used - next) * a.page_size;
  }
}

static void ranks(const RankArgs& a) { unit_ranks(a.values, a.count, a.ranks); }

static void copy(const CopyArgs& a) {
  const int threads = std::max(1, std::min<int>(a.threads > 0 ? a.threads : omp_get_max_threads(),
                                                static_cast<int>(a.count * a.page_bytes >> 18)));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < a.count; ++i)
    std::memcpy(a.target + a.target_pages[i] * a.target_stride_bytes,
                a.source + a.source_pages[i] * a.source_stride_bytes, a.page_bytes);
}

}  // namespace memdecay

using namespace memdecay;

#pragma GCC visibility push(default)
extern "C" {

const char* memdecay_digest() { return MEMDECAY_DIGEST; }

// Number of an instruction set by name ("auto": the best one here), or -1 where it cannot run.
int memdecay_find(const char* name) {
  for (int isa = kTables - 1; isa >= 0; --isa)
    if (tables()[isa] && (std::strcmp(name, "auto") == 0 || std::strcmp(name, tables()[isa]->name) == 0)) return isa;
  return -1;
}

const char* memdecay_name(int isa) { return tables()[isa]->name; }

// Each takes the number of an instruction set that `memdecay_find` gave and an argument record; it returns 0, or 1 if
// the record has another size than this library's.
int memdecay_attention_mass(int isa, const MassArgs* a) { return run(a, tables()[isa]->attention_mass); }
int memdecay_read_keys(int isa, const MassArgs* a) { return run(a, tables()[isa]->read_keys); }
int memdecay_key_norms(int isa, const NormArgs* a) { return run(a, tables()[isa]->key_norms); }
int memdecay_observe(int isa, const ObserveArgs* a) { return run(a, tables()[isa]->observe); }
int memdecay_score(int isa, const ScoreArgs* a) { return run(a, tables()[isa]->score); }
int memdecay_salience(int isa, const SalienceArgs* a) { return run(a, tables()[isa]->salience); }
int memdecay_facts(int, const FactsArgs* a) { return run(a, facts); }
int memdecay_select(int, const SelectArgs* a) { return run(a, select); }
int memdecay_compact(int, const CompactArgs* a) { return run(a, compact); }
int memdecay_copy(int, const CopyArgs* a) { return run(a, copy); }
int memdecay_ranks(int, const RankArgs* a) { return run(a, ranks); }
}
#pragma GCC visibility pop
