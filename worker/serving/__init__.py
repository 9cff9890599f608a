"""`pagemill serve`: OpenAI's HTTP interface in front of the queue. Needs the `serve` extra; imports no torch."""
