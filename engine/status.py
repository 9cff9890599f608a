"""What the engine says of itself to whoever watches it."""

from dataclasses import dataclass

from engine.offloading import OffloadFigures

NO_OFFLOADING = OffloadFigures()


@dataclass(frozen=True, slots=True)
class StepSize:
    """How much a step computed."""

    num_requests: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot for panels and heartbeats."""

    num_waiting: int
    num_running: int
    blocks_held: int
    blocks_cached: int
    num_blocks: int
    steps: int
    computed_tokens: int  # prompt and output tokens run through the model
    output_tokens: int  # sampled, of unfinished requests too
    preemptions: int
    offload: OffloadFigures = NO_OFFLOADING
