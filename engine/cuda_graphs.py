"""CUDA graphs of steps that only decode: the whole forward is recorded once and started with one call after that.

A graph repeats the same launches on the same memory, so a step is made to look like one that was recorded: it is filled
up to one of a few numbers of requests, and its tensors are copied to where the graph reads them. The requests that fill
it up each decode their first token in a block that belongs to nobody.

Not run on a GPU yet.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from engine.kv_cache import KVCache
from engine.paged_model import ModelInput, PagedModel, StepAttention, batches_of
from engine.step_plan import ScheduledRequest, SchedulerOutput
from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.score_rules import ScoreRules
from kernels.transfers import to_send
from kernels.triton_plan import SplitRule, TritonPlan, plan_attention
from kernels.triton_static_plan import PlanRoom, StaticPlan

# Numbers of requests that are recorded. A larger step keeps the GPU busy for longer than it takes to launch.
BUCKETS = (1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 257, 32))
MIN_TABLE_BLOCKS = 16  # of a block table; beyond, powers of two
CPU = torch.device("cpu")

Forward: TypeAlias = Callable[[], None]
Capture: TypeAlias = Callable[[Forward], Callable[[], None]]  # records a forward and returns how to repeat it
# What attention is planned for: a KV group, a window, query heads and KV heads.
Heads: TypeAlias = tuple[int, int | None, int, int]
GraphKey: TypeAlias = tuple[int, int, tuple[tuple[int, bool], ...]]

logger = logging.getLogger(__name__)


class CudaCapture:
    """Records forwards on a GPU. Its graphs share one pool of memory, since never two of them run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, forward: Forward) -> Callable[[], None]:
        """Raises RuntimeError where the forward does what cannot be recorded, such as waiting for a value."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            forward()  # whatever is set up on first use is set up, on a stream such as will record
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            forward()
        replay: Callable[[], None] = graph.replay
        return replay


@dataclass(frozen=True, slots=True)
class _Graph:
    """A recorded step, and the memory that it reads and writes."""

    tokens: Tensor  # [2 + num_groups, bucket], int64: token ids, positions and each KV group's slots
    plans: Mapping[Heads, StaticPlan]
    logits: Tensor  # [bucket, vocab_size], float32
    replay: Callable[[], None]


class DecodeGraphs:
    """Runs steps that only decode by graphs, which are recorded when they are first needed."""

    def __init__(self, model: PagedModel, cache: KVCache, scratch_block: int, capture: Capture) -> None:
        """`scratch_block` is a block of the cache that is never given to a request."""
        self._model = model
        self._cache = cache
        self._scratch = PagedSequence([scratch_block], 0, 1)
        self._capture = capture
        self._rules: dict[Heads, SplitRule] = {
            (group, layer.window, layer.num_heads, layer.num_kv_heads): SplitRule.choose(
                model.device, layer.num_kv_heads, batch_invariant=model.batch_invariant
            )
            for group, layer in zip(cache.groups, model.layers, strict=True)
        }
        self._graphs: dict[GraphKey, _Graph] = {}
        self._logits: dict[int, Tensor] = {}  # by bucket: one graph's are read before another runs
        self._is_off = False

    def forward(self, plan: SchedulerOutput, fill_pending: Callable[[Tensor], None]) -> Tensor | None:
        """Run a step and return its logits, [num_requests, vocab_size], float32, which the next step overwrites; None,
        and nothing done that the step does not do again, where it must run without a graph.

        `fill_pending` puts pending tokens into the step's token ids, a tensor on the device.
        """
        bucket = bucket_for(plan.scheduled)
        if self._is_off or bucket is None:
            return None
        batches, tokens = self._fill_up(plan, bucket)
        fresh = {
            (group, window, num_heads, num_kv_heads): plan_attention(
                batches[group], num_heads // num_kv_heads, self._model.dtype, CPU, rule, window
            )
            for (group, window, num_heads, num_kv_heads), rule in self._rules.items()
        }
        width = max(one.block_tables.shape[1] for one in fresh.values())
        num_blocks = max(MIN_TABLE_BLOCKS, 1 << (width - 1).bit_length())
        key = (bucket, num_blocks, tuple((one.tile_rows, one.merges is not None) for one in fresh.values()))
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._record(tokens, fresh, num_blocks)
            if graph is None:
                return None
            self._graphs[key] = graph
        if not all(graph.plans[heads].room.fits(one) for heads, one in fresh.items()):
            return None
        for heads, one in fresh.items():
            graph.plans[heads].fill(one)
        graph.tokens.copy_(to_send(tokens, graph.tokens.device), non_blocking=True)
        fill_pending(graph.tokens[0])
        graph.replay()
        return graph.logits[: len(plan.scheduled)]

    def _fill_up(self, plan: SchedulerOutput, bucket: int) -> tuple[list[PagedBatch], Tensor]:
        """Return the step as each KV group has it, and its token ids, positions and slots, on the host, with those that
        fill it up."""
        filling = [self._scratch] * (bucket - len(plan.scheduled))
        batches = [
            replace(batch, sequences=(*batch.sequences, *filling)) for batch in batches_of(plan, self._cache.shape)
        ]
        token_ids = [token for share in plan.scheduled for token in share.token_ids]
        positions = [sequence.num_context for sequence in batches[0].sequences]
        slots = [batch.slot_mapping() for batch in batches]
        return batches, torch.tensor([token_ids + [0] * len(filling), positions, *slots], dtype=torch.int64)

    def _record(self, tokens: Tensor, fresh: Mapping[Heads, TritonPlan], num_blocks: int) -> _Graph | None:
        """Return the graph of such steps; None, from then on, for a model that cannot be recorded."""
        device = self._model.device
        room = {heads: PlanRoom.of(one, num_blocks, self._rules[heads]) for heads, one in fresh.items()}
        if not all(room[heads].fits(one) for heads, one in fresh.items()):
            return None
        plans = {heads: StaticPlan(room[heads], one, device) for heads, one in fresh.items()}
        for heads, one in fresh.items():
            plans[heads].fill(one)
        static = tokens.to(device)
        model_input = self._input(static, plans)
        bucket = tokens.shape[1]
        try:
            logits = self._model.forward(model_input)  # which compiles what is not compiled yet
            buffer = self._logits.setdefault(bucket, torch.empty_like(logits))

            def forward() -> None:
                buffer.copy_(self._model.forward(model_input))

            return _Graph(static, plans, buffer, self._capture(forward))
        except RuntimeError as error:  # out of memory included: steps without graphs need less
            logger.warning("steps run without CUDA graphs: %s", str(error).strip().splitlines()[0])
            self._is_off = True
            self._graphs.clear()
            self._logits.clear()
            return None

    def _input(self, tokens: Tensor, plans: Mapping[Heads, StaticPlan]) -> ModelInput:
        def plan_for(group: int, rules: ScoreRules, num_heads: int, num_kv_heads: int) -> TritonPlan:
            return plans[group, rules.window, num_heads, num_kv_heads].plan

        token_ids, positions, *slots = tokens
        return ModelInput(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            slot_mappings=tuple(slots),
            sample_rows=torch.arange(tokens.shape[1], device=tokens.device),
            keeps_all_rows=True,
            attention=StepAttention(self._cache.groups, plan_for),
            cache=self._cache,
        )


def bucket_for(shares: Sequence[ScheduledRequest]) -> int | None:
    """Return the number of requests that a step is filled up to; None for a step that does not only decode, or is too
    large."""
    if not all(_only_decodes(share) for share in shares):
        return None
    return next((bucket for bucket in BUCKETS if bucket >= len(shares)), None)


def _only_decodes(share: ScheduledRequest) -> bool:
    return share.num_scheduled_tokens == 1 and not share.draft and not share.request.lacks_prompt_logprobs
