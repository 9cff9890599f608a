"""Kernels in C for CPUs with AVX-512 bfloat16, compiled on the machine that runs them where it has a compiler."""
