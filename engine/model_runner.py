"""The model runner: the only code that runs the model. A plan in, a token a request out."""

from collections.abc import Mapping

from engine.kv_cache import KVCache
from engine.memory import keep_freed_memory
from engine.paged_model import PagedModel
from engine.request import RequestError
from engine.sampler import sample
from engine.scheduler import SchedulerOutput


class ModelRunner:
    """Runs steps of one model over one KV cache."""

    def __init__(self, model: PagedModel, num_blocks: int, block_size: int) -> None:
        if model.device.type == "cpu":
            keep_freed_memory()
        self.model = model
        self.cache = KVCache(model.kv_shape(block_size), num_blocks, model.device)

    def run(self, plan: SchedulerOutput) -> Mapping[str, int | RequestError]:
        """Compute a step; returns, by request id, the token of each share that samples, and the error of any share.

        A chunk that does not sample is checked too, by its last token, which attends to all before it: were the request
        preempted or aborted in between, its blocks would go back to the pool with what is not finite in them.
        """
        logits = self.model.forward(self.model.build_input(plan, self.cache))
        tokens = sample(logits, [share.request for share in plan.scheduled])
        return {
            share.request.request_id: token
            for share, token in zip(plan.scheduled, tokens, strict=True)
            if share.samples or isinstance(token, RequestError)
        }

    def scrub(self, block_ids: list[int]) -> None:
        """Zero blocks whose content may not be finite."""
        self.cache.scrub(block_ids)
