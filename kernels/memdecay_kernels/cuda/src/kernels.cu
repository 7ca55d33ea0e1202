// Every kernel, for NVRTC.
#include "attention_mass.cuh"
