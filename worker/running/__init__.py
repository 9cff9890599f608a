"""The worker's process: from a claim through the engine to a committed and acknowledged result."""
