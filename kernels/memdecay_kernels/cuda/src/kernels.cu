// Every kernel, for NVRTC.
#include "attention_mass.cuh"
#include "compact_table.cuh"
#include "copy_pages.cuh"
#include "observe_tokens.cuh"
#include "score_pages.cuh"
#include "select_pages.cuh"
