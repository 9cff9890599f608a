"""Attention and cache kernels: tensors in, tensors out. Knows torch and triton only."""
