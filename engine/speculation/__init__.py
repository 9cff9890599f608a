"""Speculative decoding: tokens that are likely to come next are proposed, and computed in one step instead of many."""
