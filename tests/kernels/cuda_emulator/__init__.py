"""The CUDA kernels on the CPU, thread by thread: see ``emulator.h``."""
