// Serves launches over stdin and stdout: a request names a kernel and brings its parameters and its memory.
//
//   request  char kernel[64]; u32 grid[3], threads, seed, parameter_bytes, buffers, pointers;
//            parameter bytes; for each buffer: u64 size, bytes; for each pointer: u32 place in the parameters,
//            u32 buffer, u64 byte within it
//   reply    "done", then every buffer's bytes
// Every buffer has memory of its own and exactly its size. A kernel that breaks a rule ends the process, with
// the reason on stderr.
#pragma once

#include "fibers.h"
#include "shared_memory.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace emulator {

struct Kernel {
    const char* name;
    size_t parameter_bytes;
    void (*body)(const void*);
};

template <typename Parameters, void (*kernel)(const Parameters&)>
Kernel make_kernel(const char* name) {
    return {name, sizeof(Parameters), [](const void* bytes) { kernel(*static_cast<const Parameters*>(bytes)); }};
}

template <typename Function>
struct ParametersOf;
template <typename Parameters>
struct ParametersOf<void (*)(const Parameters&)> {
    typedef Parameters Type;
};

#define EMULATED(kernel) ::emulator::make_kernel<::emulator::ParametersOf<decltype(&kernel)>::Type, &kernel>(#kernel)

int serve(const std::vector<Kernel>& kernels);

}  // namespace emulator
