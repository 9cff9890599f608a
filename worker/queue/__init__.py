"""The queue in Redis: its records, its atomic scripts, and the embedded server. Torch is never imported here."""
