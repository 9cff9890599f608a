"""How far a request's parameters may go, for whoever checks them: imports nothing, so that producers may."""

MAX_TOP_LOGPROBS = 20
MAX_PROMPT_LOGPROBS = 500_000  # of one prompt, those of the likeliest included: 27 MB as JSON
MAX_PENALTY = 2.0  # either way, as OpenAI's
MAX_LOGIT_BIAS = 100.0  # either way, as OpenAI's
