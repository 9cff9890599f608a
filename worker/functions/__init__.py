"""Plain functions beside prompts: RQ's own jobs, allow-listed, in threads."""
