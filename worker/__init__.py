"""Pagemill's worker: ties the engine to Redis, the tokenizer, SQL and the command line."""
