"""What a request may ask for at all: refused here, it touches nobody else."""

from collections.abc import Sequence

from engine.config import EngineConfig
from engine.limits import MAX_PROMPT_LOGPROBS
from engine.request import Request, RequestError, SamplingParams


def check_content(prompt: Sequence[int], params: SamplingParams, vocab_size: int) -> None:
    """Raise RequestError for a token id that the model does not have, and for more log-probabilities of a prompt than
    anybody can be told: a prompt is computed fast, and its size is the sender's to choose."""
    biased = [token for token, _ in params.logit_bias]
    for field, ids in (("prompt", prompt), ("stop_token_ids", params.stop_token_ids), ("logit_bias", biased)):
        bad = next((token for token in ids if not 0 <= token < vocab_size), None)
        if bad is not None:
            raise RequestError("invalid_token", f"{field} holds token id {bad}; ids go from 0 to {vocab_size - 1}")
    if params.prompt_logprobs is not None:
        number = len(prompt) * (1 + params.prompt_logprobs)
        if number > MAX_PROMPT_LOGPROBS:
            asked = f"prompt_logprobs is {params.prompt_logprobs} and prompt has {len(prompt)} tokens"
            message = f"{asked}: together {number} log-probabilities, above the limit of {MAX_PROMPT_LOGPROBS}"
            raise RequestError("invalid_parameter", message)


def check_length(request: Request, config: EngineConfig) -> None:
    """Raise RequestError for a prompt without tokens, and for one that with its output is longer than the model's
    context or than the whole KV cache."""
    if request.num_prompt_tokens < 1:
        raise RequestError("empty_prompt", "prompt has no tokens; it needs at least 1")
    worst = request.num_prompt_tokens + request.params.max_tokens
    asked = f"prompt has {request.num_prompt_tokens} tokens and max_tokens is {request.params.max_tokens}"
    if worst > config.max_model_len:
        message = f"{asked}: together {worst}, above the context length of {config.max_model_len}"
        raise RequestError("context_length", message)
    if worst > config.longest_sequence:
        message = f"{asked}: together {worst}, above the KV cache's {config.longest_sequence}"
        raise RequestError("kv_capacity", message)
