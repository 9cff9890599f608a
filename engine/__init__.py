"""The paged-KV engine: token ids in, token ids out. Knows torch, transformers and kernels only."""
