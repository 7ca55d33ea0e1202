// The C interface of the native library: one plain argument record an operation, packed by records.py.
//
// Fields lie as the compiler aligns them; strides are in elements, counts in the unit of their name.
// A record's first field is its own size: a library and a Python file of different versions refuse each other.
#pragma once
#include <cstdint>

namespace memdecay {

enum DType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// How 16 neighbouring tokens of a page lie in memory.
enum TileKind : int32_t {
  kGeneric = 0,  // anywhere: read by index
  kColumns = 1,  // for each dimension the 16 tokens are neighbours
  kPairs = 2,    // for each pair of dimensions 16 x (d, d+1) are neighbours: what a matrix unit wants
};

struct MassArgs {
  int64_t size_bytes;
  const void* query;           // [tokens, num_heads, head_dim]
  int64_t query_token_stride;
  int64_t query_head_stride;
  const void* keys;            // cells of page_size * head_dim elements
  int64_t key_page_stride;
  int64_t key_head_stride;
  const int32_t* offsets;      // [page_size, head_dim]: place of each element in its cell
  const int32_t* block_table;  // [requests, table_stride]
  int64_t table_stride;
  const int32_t* context_lens; // [requests]: retained tokens
  const int32_t* query_ends;   // [requests]
  const int32_t* windows;      // [requests]
  float* out;                  // [requests, out_stride]
  int64_t out_stride;
  int32_t requests;
  int32_t out_columns;         // columns that are zeroed where nothing is accumulated
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t page_size;           // tokens
  int32_t query_dtype;
  int32_t key_dtype;
  int32_t tile_kind;
  int32_t reduce_max;          // 0: mean over heads, 1: max
  int32_t accumulate;
  int32_t threads;             // at most so many; 0: OpenMP's own number
  float scale;
};

struct NormArgs {
  int64_t size_bytes;
  const void* keys;            // cells of page_size * head_dim elements
  int64_t key_page_stride;
  int64_t key_head_stride;
  const int32_t* offsets;      // [page_size, head_dim]: place of each element in its cell
  const int64_t* pages;        // [count]
  float* out;                  // [count, page_size]: added to
  int64_t count;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t page_size;           // tokens
  int32_t key_dtype;
  int32_t tile_kind;
};

struct ObserveArgs {
  int64_t size_bytes;
  int64_t* refreshed_at_ticks;
  float* ewma_mass;
  float* accumulated_relative;
  float* salience_sum;
  float* salience_weight;
  float* last_query_mass;
  const int64_t* token_index;  // [count], strictly increasing
  const float* mass;           // [count]
  const float* newest_mass;    // [count] or null
  int64_t count;
  int64_t clock_ticks;
  float keep;                  // (1 - ewma factor) ^ represented queries
  float weight;                // represented queries
  float salience_floor;
  int32_t salience_neighbours;
  int64_t salience_min_age_tokens;
  float refresh_threshold;
  int32_t refresh;             // 0: never, 1: raw mass, 2: relative mass
};

struct ScoreArgs {
  int64_t size_bytes;
  const int8_t* region;
  const int8_t* flags;
  const int64_t* refreshed_at_ticks;
  const float* attention;          // the column that the attention term reads
  const float* salience_sum;
  const float* salience_weight;
  const float* base_priority;      // [regions]
  const float* decay;              // [regions]: rate per tick (exponential) or half-life in ticks (power law)
  const int64_t* pages;            // [page_count], ascending
  const uint8_t* evictable;        // [page_count]
  float* out;                      // [3, page_count]
  int64_t page_count;
  int64_t processed_tokens;
  int64_t clock_ticks;
  int32_t regions;
  int32_t page_size;               // tokens
  int32_t power_law;
  int32_t attention_ranks;
  int32_t salience_ranks;
  float superseded_factor;
  float attention_weight;
  float salience_weight_factor;
};

struct FactsArgs {
  int64_t size_bytes;
  const int8_t* region;
  const int8_t* flags;
  const uint8_t* pinned;           // [capacity]
  const int64_t* tie_rank;         // [regions]
  const int64_t* pages;            // [page_count], ascending
  int8_t* page_region;             // [page_count]
  uint8_t* page_pinned;            // [page_count]
  uint8_t* page_superseded;        // [page_count]
  int64_t page_count;
  int64_t registered_tokens;
  int32_t regions;
  int32_t page_size;               // tokens
};

struct SelectArgs {
  int64_t size_bytes;
  const float* scores;             // [page_count], finite
  const uint8_t* evictable;        // [page_count]
  int64_t* out;                    // [count], -1 behind the last
  int64_t page_count;
  int64_t count;
};

struct RankArgs {
  int64_t size_bytes;
  const float* values;             // [count]
  float* ranks;                    // [count]
  int64_t count;
};

struct SalienceArgs {
  int64_t size_bytes;
  const float* relative_mass;      // [count]
  float* salience;                 // [count]
  int64_t count;
  float floor;
  int32_t neighbours;
};

struct CompactArgs {
  int64_t size_bytes;
  const int32_t* block_table;      // [rows, table_stride]
  int64_t table_stride;
  const int32_t* seq_lens;         // [rows]: logical tokens
  int32_t* out_table;              // [rows, out_stride]
  int64_t out_stride;
  int32_t* kept_tokens;            // [rows]
  uint8_t* kept_pages;             // [rows, columns]
  int32_t rows;
  int32_t columns;
  int32_t page_size;               // tokens
  int32_t null_page;
};

struct CopyArgs {
  int64_t size_bytes;
  const char* source;
  char* target;
  const int64_t* source_pages;     // [count]
  const int64_t* target_pages;     // [count]
  int64_t count;
  int64_t source_stride_bytes;
  int64_t target_stride_bytes;
  int64_t page_bytes;
  int32_t threads;
};

// What one instruction set provides.
struct Table {
  const char* name;
  void (*attention_mass)(const MassArgs&);
  void (*observe)(const ObserveArgs&);
  void (*score)(const ScoreArgs&);
  void (*salience)(const SalienceArgs&);
  void (*read_keys)(const MassArgs&);
  void (*key_norms)(const NormArgs&);
};

}  // namespace memdecay
