"""The model runner: the only code that runs the model. A plan in, a request's next tokens out."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from engine.block_copier import BlockCopier
from engine.cpu_threads import ThreadGovernor
from engine.cuda_graphs import CudaCapture, DecodeGraphs
from engine.forking import BlockCopy
from engine.host_tier import Restore, Spill
from engine.kv_cache import KVCache
from engine.launched_step import LaunchedStep, noted_out_of_memory, results_of
from engine.memory import keep_freed_memory
from engine.offload_policy import CopyTime
from engine.offloading import Transfer
from engine.paged_model import PagedModel
from engine.probing import plan_of, probe_request
from engine.prompt_scoring import PromptScorer
from engine.request import RequestError
from engine.speculation.verifying import sample_drafts
from engine.step_plan import Computed, Launched, SchedulerOutput


class ModelRunner:
    """Runs steps of one model over one KV cache."""

    def __init__(
        self,
        model: PagedModel,
        num_blocks: int,
        block_size: int,
        kv_dtype: torch.dtype | None = None,
        num_host_blocks: int = 0,
        *,
        cuda_graphs: bool = True,
    ) -> None:
        """`kv_dtype` is what `engine.kv_cache.choose_kv_dtype` returns; `cuda_graphs` says whether a GPU is to use
        them."""
        is_cpu = model.device.type == "cpu"
        if is_cpu:
            keep_freed_memory()
        # Another number of threads may add up in another order.
        self._threads = ThreadGovernor(torch.get_num_threads() if is_cpu and not model.batch_invariant else 1)
        self.model = model
        self._prompts = PromptScorer(model.model)
        has_graphs = cuda_graphs and model.device.type == "cuda"
        # One more, which no request gets.
        self.cache = KVCache(model.kv_shape(block_size, kv_dtype), num_blocks + has_graphs, model.device)
        self.graphs = DecodeGraphs(model, self.cache, num_blocks, CudaCapture()) if has_graphs else None
        self._copier = BlockCopier(self.cache, num_host_blocks)
        self._latest: LaunchedStep | None = None
        self._num_blocks = num_blocks

    def launch(self, plan: SchedulerOutput) -> Launched:
        """Begin a step: its results are, by request id, the tokens of each share that samples, and the error of any
        share. On a CPU it is over then; on a GPU nothing waits, unless there are drafts or prompts to score.

        A plan that is ahead gets its pending tokens from the step launched before it; where it chooses late, only its
        forward is begun here. A chunk that does not sample is checked too, by its last token, which attends to all
        before it: were the request preempted or aborted in between, its blocks would go back to the pool with what is
        not finite in them.

        Raises DeviceOutOfMemory.
        """
        torch.get_num_threads()  # the first time on a thread this sets them, for C kernels too
        self._threads.begin()
        try:
            with noted_out_of_memory(self.model.device):
                return self._launch(plan)
        finally:
            self._threads.end()

    def probe(self) -> None:
        """Run one token through block 0, which must be free. Raises whatever the model raises on it.

        In all KV groups at once: a layer stores the token just before it attends to it.
        """
        request = probe_request([0], [0])
        request.block_tables *= len(self.cache.shape.groups)
        result = self._launch(plan_of(request, 0, 1)).results()[request.request_id]
        self.scrub([0])
        if isinstance(result, RequestError):
            raise result

    def _launch(self, plan: SchedulerOutput) -> Launched:
        self._transfer(plan.transfers)
        # Sampling too: it changes logits in place, which are the model's own in float32.
        with torch.inference_mode():
            with self._prompts.watching(plan) as failed:
                logits = self._forward(plan)
            if any(share.draft for share in plan.scheduled):
                return Computed(results_of(plan, sample_drafts(logits, plan.scheduled)) | failed)
        step = LaunchedStep(plan, logits, failed)
        if not plan.chooses_late:
            step.choose()
        self._latest = step
        return step

    def _forward(self, plan: SchedulerOutput) -> Tensor:
        logits = None if self.graphs is None else self.graphs.forward(plan, partial(self._fill_pending, plan))
        if logits is not None:
            return logits
        model_input = self.model.build_input(plan, self.cache)
        self._fill_pending(plan, model_input.input_ids[0])
        return self.model.forward(model_input)

    def _fill_pending(self, plan: SchedulerOutput, token_ids: Tensor) -> None:
        """Put what the step launched before samples in the place of pending tokens. token_ids: [T] or longer."""
        if plan.is_ahead:
            assert self._latest is not None, "a step is ahead of another"
            self._latest.fill_pending(plan, token_ids)

    def _transfer(self, transfers: Sequence[Transfer]) -> None:
        """Copy blocks, in order; runs of one kind at once."""
        for kind, run in groupby(transfers, key=type):
            if kind is BlockCopy:
                self.cache.copy_blocks([(one.source, one.target) for one in run if isinstance(one, BlockCopy)])
            elif kind is Spill:
                self._copier.spill([one for one in run if isinstance(one, Spill)])
            else:
                self._copier.restore([one for one in run if isinstance(one, Restore)])

    def take_copy_times(self) -> Sequence[CopyTime]:
        """Return what copies to the host and back took that ended since this was asked last."""
        return self._copier.take_times()

    def scrub(self, block_ids: list[int]) -> None:
        """Zero blocks whose content may not be finite."""
        if len(block_ids) == self._num_blocks:
            self.cache.scrub_all()
        else:
            self.cache.scrub(block_ids)
