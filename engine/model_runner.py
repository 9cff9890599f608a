"""The model runner: the only code that runs the model. A plan in, a token a request out."""

from collections.abc import Mapping

from engine.kv_cache import KVCache
from engine.paged_model import PagedModel
from engine.request import RequestError
from engine.sampler import sample
from engine.scheduler import SchedulerOutput


class ModelRunner:
    """Runs steps of one model over one KV cache."""

    def __init__(self, model: PagedModel, num_blocks: int, block_size: int) -> None:
        self.model = model
        self.cache = KVCache(model.kv_shape(block_size), num_blocks, model.device)

    def run(self, plan: SchedulerOutput) -> Mapping[str, int | RequestError]:
        """Compute a step; returns, by request id, the token of each share that samples, or the error that ends it."""
        logits = self.model.forward(self.model.build_input(plan, self.cache))
        requests = [share.request for share in plan.scheduled if share.samples]
        tokens = sample(logits, requests) if requests else []
        return {request.request_id: token for request, token in zip(requests, tokens, strict=True)}

    def scrub(self, block_ids: list[int]) -> None:
        """Zero blocks whose content may not be finite."""
        self.cache.scrub(block_ids)
