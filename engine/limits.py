"""How far a request's parameters may go, for whoever checks them: imports nothing, so that producers may."""

MAX_TOP_LOGPROBS = 20
MAX_PENALTY = 2.0  # either way, as OpenAI's
MAX_LOGIT_BIAS = 100.0  # either way, as OpenAI's
