// attention_mass for one instruction set.
//
// A unit of work is one key-value head of one request. Its query rows (group x W) go through the keys in blocks:
//
//   for each chunk of tokens:  logits = rows x keys -> maximum of the chunk -> 2^(logit - maximum), sum
//   then:                      mass[t] += sum over rows of 2^(...) * 2^(chunk maximum - maximum) / (sum * W)
//
// so that a key is read once a block of rows and no exponential is taken twice. Logits are to base 2. A chunk's
// exponentials are taken while the keys of the next chunk come from memory.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include <omp.h>

#include "tiles.h"
#include "tiles_amx.h"
#include "tiles_bf16.h"

namespace memdecay {
namespace MEMDECAY_ISA {

constexpr int kChunk = 256;    // tokens whose logits share one maximum
constexpr int kRowBlock = 16;  // query rows that go through the keys together
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Memory that grows and is not initialised.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

  float* get(int64_t floats) {
    if (floats > capacity_) {
      std::free(data_);
      capacity_ = (floats + 1023) / 1024 * 1024;
      data_ = static_cast<float*>(std::aligned_alloc(64, capacity_ * sizeof(float)));
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  int64_t capacity_ = 0;
};

// One key-value head of one request.
class HeadPass {
 public:
  HeadPass(const MassArgs& args, int request, int kv_head)
      : a_(args),
        context_(args.context_lens[request]),
        window_(args.windows[request]),
        group_(args.num_heads / args.num_kv_heads),
        padded_((context_ + kChunk - 1) / kChunk * kChunk),
        chunks_(padded_ / kChunk),
        even_dim_((args.head_dim + 1) / 2 * 2),
        first_query_(static_cast<int64_t>(args.query_ends[request]) - window_),
        first_head_(kv_head * group_),
        scale_(args.scale ? args.scale * kLog2E : std::numeric_limits<float>::min()) {
    keys_.dtype = args.key_dtype;
    keys_.page_stride_bytes = args.key_page_stride * keys_.element_bytes();
    keys_.head = static_cast<const char*>(args.keys) + kv_head * args.key_head_stride * keys_.element_bytes();
    keys_.pages = args.block_table + request * args.table_stride;
    keys_.page_size = args.page_size;
    keys_.page_count = (context_ + args.page_size - 1) / args.page_size;
    keys_.head_dim = args.head_dim;
    keys_.offsets = args.offsets;
  }

  // mass [context rounded up to a chunk]: sum over the group's heads of the mean over W, or the largest of them.
  void run(float* mass, Scratch& scratch) {
    const int rows_total = group_ * window_;
    const int block = window_ <= kRowBlock ? kRowBlock / window_ * window_ : kRowBlock;  // whole heads where they fit
    float* next = scratch.get(static_cast<int64_t>(block) * (padded_ + 2 * chunks_) + rows_total * even_dim_ +
                              kTile * even_dim_ + padded_ + 256);
    auto take = [&next](int64_t floats) { float* p = next; next += (floats + 15) / 16 * 16; return p; };
    logits_ = take(static_cast<int64_t>(block) * padded_);
    maxima_ = take(static_cast<int64_t>(block) * chunks_);
    sums_ = take(static_cast<int64_t>(block) * chunks_);
    rows_ = take(static_cast<int64_t>(rows_total) * even_dim_);
    tile_ = take(kTile * even_dim_);
    float* one_head = take(padded_);
    gather_rows();
    std::memset(mass, 0, padded_ * sizeof(float));
    if (a_.reduce_max) std::memset(one_head, 0, padded_ * sizeof(float));
    for (int first = 0; first < rows_total; first += block) {
      const int count = std::min(block, rows_total - first);
      all_logits(first, count);
      for (int r = 0; r < count; ++r) factors(r);
      if (!a_.reduce_max) {
        add_rows(0, count, mass);
        continue;
      }
      for (int r = 0; r < count;) {  // a head's rows stand together; a block may end inside one
        const int left = window_ - (first + r) % window_, here = std::min(left, count - r);
        add_rows(r, here, one_head);
        if (here == left) take_larger(one_head, mass);
        r += here;
      }
    }
  }

 private:
  // Rows in the order (head of the group, query), float32 with a zero behind an odd head_dim; bfloat16 as they are where
  // the processor multiplies those.
  void gather_rows() {
#ifdef MEMDECAY_AMX
    amx_ = amx_fits(a_);
#endif
#ifdef MEMDECAY_BF16
    bf16_ = bf16_fits(a_);
#endif
    for (int g = 0; g < group_; ++g)
      for (int w = 0; w < window_; ++w) {
        const int64_t at = (first_query_ + w) * a_.query_token_stride + (first_head_ + g) * a_.query_head_stride;
        const int64_t row = g * window_ + w;
        if (amx_ || bf16_) {
          std::memcpy(reinterpret_cast<uint16_t*>(rows_) + row * a_.head_dim,
                      static_cast<const uint16_t*>(a_.query) + at, a_.head_dim * 2);
          continue;
        }
        for (int d = 0; d < a_.head_dim; ++d) rows_[row * even_dim_ + d] = scalar(a_.query, a_.query_dtype, at + d);
        if (even_dim_ > a_.head_dim) rows_[row * even_dim_ + a_.head_dim] = 0;
      }
  }

  void all_logits(int first, int count) {
#ifdef MEMDECAY_AMX
    if (amx_) {
      AmxBlock unit(count, a_.head_dim);
      unit.load_rows(reinterpret_cast<const uint16_t*>(rows_) + static_cast<int64_t>(first) * a_.head_dim, a_.head_dim);
      const int64_t stride = a_.offsets[2] * 2;
      chunked(first, count, [&](const char* cell, int inside, float* logits) {
        unit.tile(cell + a_.offsets[inside * a_.head_dim] * 2, stride, logits, padded_ * 4);
      });
      return;
    }
#endif
#ifdef MEMDECAY_BF16
    if (bf16_) {
      const uint16_t* packed = reinterpret_cast<const uint16_t*>(rows_) + static_cast<int64_t>(first) * a_.head_dim;
      chunked<2>(first, count, [&](const char* cell, int inside, float* logits) {
        bf16_rows(reinterpret_cast<const uint16_t*>(cell) + a_.offsets[inside * a_.head_dim], a_.offsets, packed, count,
                  a_.head_dim, logits, padded_);
      });
      return;
    }
#endif
    const float* rows = rows_ + static_cast<int64_t>(first) * even_dim_;
    const int32_t* at = a_.offsets;
    auto base = [&](const char* cell, int inside) {
      return cell + static_cast<int64_t>(at[inside * a_.head_dim]) * keys_.element_bytes();
    };
    auto half = [&](const char* cell, int inside) { return reinterpret_cast<const uint16_t*>(base(cell, inside)); };
    if (a_.tile_kind == kColumns && a_.key_dtype == kFloat32) {
      chunked(first, count, [&](const char* cell, int inside, float* logits) {
        const ColumnTile<kFloat32> tile{reinterpret_cast<const float*>(base(cell, inside)), at};
        dot_rows(tile, rows, count, even_dim_, logits, padded_);
      });
    } else if (a_.tile_kind == kColumns && a_.key_dtype == kBFloat16) {
      chunked(first, count, [&](const char* cell, int inside, float* logits) {
        dot_rows(ColumnTile<kBFloat16>{half(cell, inside), at}, rows, count, even_dim_, logits, padded_);
      });
    } else if (a_.tile_kind == kColumns) {
      chunked(first, count, [&](const char* cell, int inside, float* logits) {
        dot_rows(ColumnTile<kFloat16>{half(cell, inside), at}, rows, count, even_dim_, logits, padded_);
      });
    } else if (a_.tile_kind == kPairs && a_.key_dtype == kBFloat16) {
      chunked(first, count, [&](const char* cell, int inside, float* logits) {
        dot_rows(PairTileBf16{half(cell, inside), at}, rows, count, even_dim_, logits, padded_);
      });
    } else {
      vf totals[kRowBlock];
      for (int start = 0; start < context_; start += kChunk) {
        for (int t = start; t < std::min(start + kChunk, context_); t += kTile) {
          gather_tile(keys_, t, even_dim_, tile_);
          dot_rows(FloatTile{tile_}, rows, count, even_dim_, logits_ + t, padded_);
        }
        maxima(first, count, start, totals);
        exponentials(count, start, start + kChunk, totals);
        add_up(count, start, totals);
      }
    }
  }

  // Logits of all tiles, page by page. While the matrix unit and the memory are at a chunk, the exponentials of the one
  // before it are taken, tile by tile.
  template <int N = 1, class Tile>  // N: tiles that `tile` takes at once
  void chunked(int first, int count, const Tile& tile) {
    const int tile_bytes = N * kTile * a_.head_dim * keys_.element_bytes();
    int number = 0, inside = 0;
    const char* cell = keys_.cell(0);
    const char* after = keys_.cell(std::min(1, keys_.page_count - 1));
    vf totals[kRowBlock];
    int due = 0;  // the first token whose exponentials are to be taken
    for (int start = 0; start < context_; start += kChunk) {
      for (int t = start; t < std::min(start + kChunk, context_); t += N * kTile) {
        prefetch(after + static_cast<int64_t>(inside) * a_.head_dim * keys_.element_bytes(), tile_bytes);
        tile(cell, inside, logits_ + t);
        inside += N * kTile;
        if (inside == a_.page_size) {
          inside = 0, ++number;
          cell = after;
          after = keys_.cell(std::min(number + 1, keys_.page_count - 1));
        }
        if (start) exponentials(count, due, due + N * kTile, totals), due += N * kTile;
      }
      if (start) exponentials(count, due, start, totals), add_up(count, start - kChunk, totals);
      maxima(first, count, start, totals);
      due = start;
    }
    exponentials(count, due, padded_, totals);
    add_up(count, due, totals);
  }

  // The largest logit of each row in one chunk, times `scale_`; what a row may not see is set below all.
  void maxima(int first, int count, int start, vf* totals) {
    const float lowest = scale_ > 0 ? -kInfinity : kInfinity;
    for (int r = 0; r < count; ++r) {
      float* row = logits_ + static_cast<int64_t>(r) * padded_ + start;
      const int seen = std::max(0, context_ - (window_ - 1 - (first + r) % window_) - start);
      for (int t = seen; t < kChunk; ++t) row[t] = lowest;
      vf top = splat(-kInfinity);
      for (int t = 0; t < std::min(seen, kChunk); t += W) top = maximum(top, load(row + t) * scale_);
      maxima_[r * chunks_ + start / kChunk] = horizontal_max(top);
      totals[r] = vf{};
    }
  }

  // Logits of tokens of one chunk to 2^(scale_ logit - maximum), 0 where a row may not see.
  void exponentials(int count, int from, int to, vf* totals) {
    for (int r = 0; r < count; ++r) {
      float* row = logits_ + static_cast<int64_t>(r) * padded_;
      const float top = maxima_[r * chunks_ + from / kChunk];
      for (int t = from; t < to; t += W) {
        const vf e = exp2_nonpositive(load(row + t) * scale_ - top);
        store(row + t, e);
        totals[r] += e;
      }
    }
  }

  void add_up(int count, int start, const vf* totals) {
    for (int r = 0; r < count; ++r) sums_[r * chunks_ + start / kChunk] = horizontal_sum(totals[r]);
  }

  // A row's maxima become what its exponentials are to be multiplied with, chunk by chunk.
  void factors(int row) {
    float* maxima = maxima_ + row * chunks_;
    const float* sums = sums_ + row * chunks_;
    const float top = *std::max_element(maxima, maxima + chunks_);
    double total = 0;
    for (int c = 0; c < chunks_; ++c) {
      maxima[c] = std::exp2(maxima[c] - top);
      total += static_cast<double>(sums[c]) * maxima[c];
    }
    const float share = static_cast<float>(1.0 / (total * window_));
    for (int c = 0; c < chunks_; ++c) maxima[c] *= share;
  }

  void add_rows(int first, int count, float* mass) const {
    for (int c = 0; c < chunks_; ++c)
      for (int t = c * kChunk; t < (c + 1) * kChunk; t += W) {
        vf sum = load(mass + t);
        for (int r = first; r < first + count; ++r)
          sum += load(logits_ + static_cast<int64_t>(r) * padded_ + t) * maxima_[r * chunks_ + c];
        store(mass + t, sum);
      }
  }

  void take_larger(float* one_head, float* mass) const {
    for (int t = 0; t < padded_; t += W) {
      store(mass + t, maximum(load(mass + t), load(one_head + t)));
      store(one_head + t, vf{});
    }
  }

  const MassArgs& a_;
  const int context_, window_, group_, padded_, chunks_, even_dim_;
  const int64_t first_query_;
  const int first_head_;
  const float scale_;  // to base 2; never 0, by which infinity could not be multiplied
  KeyPages keys_;
  bool amx_ = false, bf16_ = false;  // whose multiplications are used
  float *logits_ = nullptr, *maxima_ = nullptr, *sums_ = nullptr, *rows_ = nullptr, *tile_ = nullptr;
};

static thread_local Scratch head_scratch;
static thread_local Scratch partial_scratch;

// The partial masses of all heads of a call: floats [sum of padded contexts x heads].
struct Parts {
  float* data;
  const int64_t* starts;  // [requests + 1]: where each request's begin

  int64_t padded(const MassArgs& a, int request) const {
    return (starts[request + 1] - starts[request]) / a.num_kv_heads;
  }
};

// Unit `item` of the call. Counted from the last one on: what attention has just read last is nearest.
static void head_pass(const MassArgs& a, const Parts& parts, int item) {
  const int back = a.requests * a.num_kv_heads - 1 - item;
  const int request = back / a.num_kv_heads, head = back % a.num_kv_heads;
  const int64_t padded = parts.padded(a, request);
  if (padded) HeadPass(a, request, head).run(parts.data + parts.starts[request] + head * padded, head_scratch);
}

// A request's masses from those of its heads.
static void sum_heads(const MassArgs& a, const Parts& all, int r) {
  float* out = a.out + r * a.out_stride;
  const int64_t padded = all.padded(a, r);
  const int context = padded ? a.context_lens[r] : 0;
  const float* parts = all.data + all.starts[r];
  const float share = a.reduce_max ? 1.0f : 1.0f / a.num_heads;
  for (int t = 0; t < context; t += W) {  // the parts are padded; the row may end inside a vector
    vf value = load(parts + t);
    for (int h = 1; h < a.num_kv_heads; ++h) {
      const vf other = load(parts + h * padded + t);
      value = a.reduce_max ? maximum(value, other) : value + other;
    }
    value = value * share;
    if (t + W <= context) {
      store(out + t, a.accumulate ? load(out + t) + value : value);
    } else {
      for (int l = 0; t + l < context; ++l) out[t + l] = a.accumulate ? out[t + l] + value[l] : value[l];
    }
  }
  if (!a.accumulate && a.out_columns > context) std::memset(out + context, 0, (a.out_columns - context) * sizeof(float));
}

static void attention_mass(const MassArgs& a) {
  static thread_local std::vector<int64_t> starts;
  starts.assign(a.requests + 1, 0);
  for (int r = 0; r < a.requests; ++r) {
    const bool live = a.context_lens[r] > 0 && a.windows[r] > 0;
    const int64_t padded = live ? (a.context_lens[r] + kChunk - 1) / kChunk * kChunk : 0;
    starts[r + 1] = starts[r] + padded * a.num_kv_heads;
  }
  const Parts parts{partial_scratch.get(starts[a.requests]), starts.data()};
  const int items = a.requests * a.num_kv_heads;
  const int threads = std::max(1, std::min(items, a.threads > 0 ? a.threads : omp_get_max_threads()));
  if (threads == 1) {  // a parallel region of one thread costs as much as 64 keys
    for (int item = 0; item < items; ++item) head_pass(a, parts, item);
    for (int r = 0; r < a.requests; ++r) sum_heads(a, parts, r);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int item = 0; item < items; ++item) head_pass(a, parts, item);
#pragma omp parallel for schedule(static) num_threads(std::min(threads, a.requests)) if (a.requests > 1)
  for (int r = 0; r < a.requests; ++r) sum_heads(a, parts, r);
}

}  // namespace MEMDECAY_ISA
}  // namespace memdecay
