"""Several outputs of one prompt: requests that compute it once and share its blocks, copy-on-write.

All of a group wait in line like any other request. The first to be admitted computes the prompt; the others stand
aside, so that they hold up nobody, and run as soon as it is there: on the same blocks, full ones and the partly filled
last one. Whoever is next to write to a block that others hold too, or that the prefix cache has a name for, gets a copy
of it first. A request that finds nobody to share with, after a preemption say, computes its tokens itself.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from engine.grammar import Grammar
from engine.request import Request, RequestError, RequestState, SamplingParams

MAX_OUTPUTS = 16  # of one prompt
ID_SEPARATOR = "#"  # between a prompt's id, which must not have it, and an output's index


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The content of a block that another one is to have too."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Output:
    """How one of a prompt's outputs is to be had."""

    params: SamplingParams
    grammar: Grammar | None = None  # each output has a state of its own


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """The KV of a request's first `num_tokens` tokens, in the blocks of another."""

    holder: Request
    num_tokens: int


def check_outputs(outputs: Sequence[Output]) -> None:
    """Raise RequestError for more outputs than a prompt may have, or none."""
    if not 1 <= len(outputs) <= MAX_OUTPUTS:
        raise RequestError("invalid_parameter", f"n is {len(outputs)}; it must be between 1 and {MAX_OUTPUTS}")


def request_id_of_output(request_id: str, index: int) -> str:
    """Return the id of one of a prompt's outputs; the first has the prompt's own."""
    return request_id if index == 0 else f"{request_id}{ID_SEPARATOR}{index}"


def prompt_id_of(request_id: str) -> str:
    """Return the id that a request was added by, alone or with others of its prompt."""
    return request_id.partition(ID_SEPARATOR)[0]


def seed_of_output(seed: int, index: int) -> int:
    """Return the seed of one of a prompt's outputs. The first has the prompt's own: what it has without others too."""
    if index == 0:
        return seed
    digest = hashlib.sha256(seed.to_bytes(8, "little") + index.to_bytes(8, "little")).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def stands_aside(request: Request) -> bool:
    """Put a request that has come up aside, and say so, where another of its group is at computing the prompt."""
    group = request.group
    if group is None or request.lacks_prompt_logprobs or not any(_computes_prompt(other) for other in group.members):
        return False
    if any(_holds_prompt(other) for other in group.members):
        return False
    group.aside.append(request)
    return True


def is_aside(request: Request) -> bool:
    return request.group is not None and request in request.group.aside


def shared_prompt(request: Request) -> SharedPrompt | None:
    """Return what another of a request's group holds of the prompt, or None. The last known token is not shared: its
    logits are needed."""
    if request.group is None or request.lacks_prompt_logprobs:
        return None
    holder = next((other for other in request.group.members if _holds_prompt(other)), None)
    if holder is None:
        return None
    return SharedPrompt(holder, min(request.num_prompt_tokens, request.num_tokens - 1))


def _computes_prompt(request: Request) -> bool:
    return request.state is RequestState.RUNNING and not request.has_prompt


def _holds_prompt(request: Request) -> bool:
    return request.state is RequestState.RUNNING and request.has_prompt
