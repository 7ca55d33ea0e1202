#include "harness.h"

namespace emulator {

struct Request {
    char kernel[64];
    uint32_t grid[3], threads, seed, parameter_bytes, buffers, pointers;
};

struct Pointer {
    uint32_t place, buffer;
    uint64_t byte;
};

static bool read_all(void* to, size_t bytes) { return bytes == 0 || std::fread(to, 1, bytes, stdin) == bytes; }

static void read_or_fail(void* to, size_t bytes) {
    if (!read_all(to, bytes)) fail("the request ended early");
}

static void launch(const Kernel& kernel, const Request& request, const void* parameters) {
    const Dim3 grid = {request.grid[0], request.grid[1], request.grid[2]};
    // blocks run one after another, from the last to the first on odd seeds: nothing may depend on their order
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    for (uint64_t step = 0; step < blocks; ++step) {
        const uint64_t at = request.seed % 2 ? blocks - 1 - step : step;
        const uint64_t row = at / grid.x;
        const Dim3 index = {(unsigned)(at % grid.x), (unsigned)(row % grid.y), (unsigned)(row / grid.y)};
        Block block(grid, index, (int)request.threads, request.seed + (unsigned)at);
        block.run(kernel.body, parameters);
        shared_allocations().clear();
    }
}

int serve(const std::vector<Kernel>& kernels) {
    Request request;
    while (read_all(&request, sizeof request)) {
        const Kernel* kernel = nullptr;
        for (const Kernel& candidate : kernels)
            if (!std::strncmp(candidate.name, request.kernel, sizeof request.kernel)) kernel = &candidate;
        if (!kernel) fail("no kernel '%.64s'", request.kernel);
        if (kernel->parameter_bytes != request.parameter_bytes)
            fail("%s takes %zu bytes of parameters, not %u", kernel->name, kernel->parameter_bytes,
                 request.parameter_bytes);
        std::unique_ptr<char[]> parameters(new char[request.parameter_bytes]);
        read_or_fail(parameters.get(), request.parameter_bytes);
        std::vector<std::unique_ptr<char[]>> buffers(request.buffers);
        std::vector<uint64_t> sizes(request.buffers);
        for (uint32_t i = 0; i < request.buffers; ++i) {
            read_or_fail(&sizes[i], sizeof sizes[i]);
            buffers[i].reset(new char[sizes[i]]);
            read_or_fail(buffers[i].get(), sizes[i]);
        }
        for (uint32_t i = 0; i < request.pointers; ++i) {
            Pointer pointer;
            read_or_fail(&pointer, sizeof pointer);
            const char* address = buffers[pointer.buffer].get() + pointer.byte;
            std::memcpy(parameters.get() + pointer.place, &address, sizeof address);
        }
        launch(*kernel, request, parameters.get());
        std::fwrite("done", 1, 4, stdout);
        for (uint32_t i = 0; i < request.buffers; ++i) std::fwrite(buffers[i].get(), 1, sizes[i], stdout);
        std::fflush(stdout);
    }
    return 0;
}

}  // namespace emulator
