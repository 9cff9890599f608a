"""The claims that have to be measured, on a real model on this machine."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import torch
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine
from engine.model_loader import LoadedModel
from engine.model_runner import ModelRunner
from engine.request import Request, SamplingParams
from engine.speculation.prompt_lookup import PromptLookup
from engine.speculation.speculation import Speculation
from scripts.benchmarks.claims import Claim
from scripts.benchmarks.nll_bench import mean_nll, text_windows
from scripts.benchmarks.systems import MAX_DRAFT_TOKENS, build_workload
from scripts.benchmarks.workload import BenchmarkRequest

KV_TOKENS = 65_536
BLOCK_SIZE = 16
CONTIGUOUS_TOKENS = 1_024  # longer than any sequence here: a block of so many holds a whole one
STATIC_BATCH = 8
NLL_WINDOWS, NLL_WINDOW_TOKENS = 2, 1_024


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the engine."""

    seconds: float
    requests: Sequence[Request]
    latencies: Sequence[float]  # seconds from arrival to the last token, by request

    @property
    def computed_tokens(self) -> int:
        return sum(request.figures.computed_tokens for request in self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How the engine runs."""

    block_size: int = BLOCK_SIZE
    caching: bool = True
    arrivals: Sequence[float] | None = None  # seconds after the start; None is all at once
    batch: int | None = None  # requests that start and end together; None starts each as soon as there is room
    drafts: bool = False  # tokens that earlier ones suggest


class Measurer:
    """Measures claims with one model. `tokens` are of real text, cut into prompts."""

    def __init__(self, loaded: LoadedModel, tokens: Sequence[int], repeats: int) -> None:
        self._loaded = loaded
        self._tokens = tokens
        self._repeats = repeats

    def claims(self) -> Iterator[Claim]:
        """Yield each claim as it is measured."""
        yield self._against_transformers()
        yield self._prefix_caching()
        yield from self._block_sizes()
        yield self._paging()
        yield self._continuous_batching()
        yield self._quantised_cache()
        yield self._speculation()

    def _requests(self, count: int, prompt_tokens: int, output_tokens: int, shared: int = 0) -> list[BenchmarkRequest]:
        """Return prompts of real text that share their first `shared` tokens and nothing else."""
        prefix, own = tuple(self._tokens[:shared]), prompt_tokens - shared
        starts = [shared + index * prompt_tokens for index in range(count)]
        return [BenchmarkRequest((*prefix, *self._tokens[start : start + own]), output_tokens) for start in starts]

    def _run(self, requests: Sequence[BenchmarkRequest], how: How) -> Run:
        config = EngineConfig(
            num_blocks=KV_TOKENS // how.block_size,
            max_model_len=self._loaded.model.max_model_len,
            block_size=how.block_size,
            enable_prefix_caching=how.caching,
        )
        runner = ModelRunner(self._loaded.model, config.num_blocks, config.block_size)
        speculation = Speculation(PromptLookup(), MAX_DRAFT_TOKENS) if how.drafts else None
        identity, detokenizer = self._loaded.identity, Detokenizer(lambda token_ids: "")
        engine = Engine(config, runner, identity, detokenizer, speculator=speculation)
        arrivals = how.arrivals or [0.0] * len(requests)
        started = time.perf_counter()
        finished: dict[str, float] = {}
        added: list[Request] = []
        while len(finished) < len(requests):
            now = time.perf_counter() - started
            if how.batch is None or not engine.has_work:
                stop = len(requests) if how.batch is None else min(len(requests), len(added) + how.batch)
                while len(added) < stop and arrivals[len(added)] <= now:
                    asked = requests[len(added)]
                    params = SamplingParams(max_tokens=asked.output_tokens, ignore_eos=True)
                    added.append(engine.add(str(len(added)), asked.prompt, params))
            if not engine.has_work:
                time.sleep(max(0.0, arrivals[len(added)] - now))
                continue
            done = engine.step()
            finished.update((request.request_id, time.perf_counter() - started) for request in done)
        latencies = [finished[str(index)] - arrivals[index] for index in range(len(requests))]
        return Run(time.perf_counter() - started, added, latencies)

    def _alternate(self, *measured: Callable[[], float]) -> list[float]:
        """Return the median of each, run in turn, so that a busy moment of the machine meets all."""
        rounds = [[measure() for measure in measured] for _ in range(self._repeats)]
        return [median(column) for column in zip(*rounds, strict=True)]

    def _seconds(self, requests: Sequence[BenchmarkRequest], how: How) -> Callable[[], float]:
        return lambda: self._run(requests, how).seconds

    def _against_transformers(self) -> Claim:
        requests = self._requests(3, 200, 64)
        model = AutoModelForCausalLM.from_pretrained(self._loaded.folder, dtype=self._loaded.model.dtype).eval()

        def one_by_one() -> float:
            started = time.perf_counter()
            with torch.inference_mode():
                for request in requests:
                    model.generate(
                        torch.tensor([request.prompt]),
                        max_new_tokens=request.output_tokens,
                        min_new_tokens=request.output_tokens,
                        do_sample=False,
                    )
            return time.perf_counter() - started

        theirs, ours = self._alternate(one_by_one, self._seconds(requests, How()))
        return Claim(
            "Paged continuous batching against transformers, 3 prompts",
            "18.3 s to 6.1 s",
            3.0,
            theirs / ours,
            f"{theirs:.2f} s to {ours:.2f} s",
        )

    def _prefix_caching(self) -> Claim:
        requests = self._requests(3, 820, 4, shared=800)
        without, with_it = self._run(requests, How(caching=False)), self._run(requests, How())
        plain, cached = self._alternate(self._seconds(requests, How(caching=False)), self._seconds(requests, How()))
        tokens = [run.computed_tokens - 3 * (4 - 1) for run in (without, with_it)]  # the last token is never computed
        return Claim(
            "Prefix caching: 800 tokens shared by three questions of 20",
            "2,460 to 860 prompt tokens, 3.4 to 9.8 requests/s",
            2.86,
            plain / cached,
            f"{tokens[0]:,} to {tokens[1]:,} prompt tokens, {3 / plain:.1f} to {3 / cached:.1f} requests/s",
        )

    def _block_sizes(self) -> Iterator[Claim]:
        sizes = (8, 16, 32, 64)
        for name, prompt_tokens, count in (("short, 128 tokens", 96, 16), ("long, 1,536 tokens", 1_504, 4)):
            requests = self._requests(count, prompt_tokens, 32)
            seconds = self._alternate(*(self._seconds(requests, How(block_size=size)) for size in sizes))
            best = min(range(len(sizes)), key=seconds.__getitem__)
            rates = ", ".join(f"{size}: {count / s:.2f}" for size, s in zip(sizes, seconds, strict=True))
            yield Claim(
                f"Block size, {name}",
                "16 wins",
                1.0,
                seconds[best] / seconds[sizes.index(16)],
                f"{rates} requests/s",
                f"{sizes[best]} is fastest here; on a CPU, blocks of 8 have no C kernel",
            )

    def _paging(self) -> Claim:
        requests = self._requests(16, 240, 48)
        contiguous, paged = self._alternate(
            self._seconds(requests, How(block_size=CONTIGUOUS_TOKENS, caching=False)),
            self._seconds(requests, How(caching=False)),
        )
        return Claim(
            "Paging against one contiguous run a sequence",
            "14.1 to 12.3 requests/s: 13 % lost",
            12.3 / 14.1,
            contiguous / paged,
            f"{16 / contiguous:.2f} to {16 / paged:.2f} requests/s: {100 * (1 - contiguous / paged):.1f} % lost",
            "the same engine and batch; goal: at most 3 % lost",
        )

    def _continuous_batching(self) -> Claim:
        generator = random.Random(3)
        lengths = [generator.choice((8, 8, 16, 32, 96)) for _ in range(40)]
        prompts = self._requests(len(lengths), 64, 1)
        requests = [BenchmarkRequest(one.prompt, length) for one, length in zip(prompts, lengths, strict=True)]
        busy = self._run(requests, How()).seconds
        arrivals = sorted(generator.uniform(0.0, 1.5 * busy) for _ in requests)

        def slowest(batch: int | None) -> float:
            return quantiles(self._run(requests, How(arrivals=arrivals, batch=batch)).latencies, n=100)[98]

        static, continuous = self._alternate(lambda: slowest(STATIC_BATCH), lambda: slowest(None))
        return Claim(
            f"Continuous against static batches of {STATIC_BATCH}: 99th percentile of latency",
            "12 s to 7 s",
            12 / 7,
            static / continuous,
            f"{static:.2f} s to {continuous:.2f} s",
            "the same engine both ways, two thirds of the time busy",
        )

    def _quantised_cache(self) -> Claim:
        windows = text_windows(self._loaded, NLL_WINDOWS, NLL_WINDOW_TOKENS)
        plain, quantised = (mean_nll(self._loaded.model, windows, kind) for kind in ("auto", "int8"))
        perplexities = [float(torch.tensor(value).exp()) for value in (plain, quantised)]
        return Claim(
            "int8 KV cache: perplexity",
            "5.2 to 6.8",
            5.2 / 6.8,
            perplexities[0] / perplexities[1],
            f"{perplexities[0]:.3f} to {perplexities[1]:.3f}",
            "the article's loss is an error in its scales",
        )

    def _speculation(self) -> Claim:
        requests = build_workload("summary", 3, self._loaded.folder)
        plain, drafted = self._alternate(
            *(self._seconds(requests, How(batch=1, drafts=drafts)) for drafts in (False, True))
        )
        return Claim(
            "Speculative decoding, short queries one by one: latency",
            "40 % less",
            1 / 0.6,
            plain / drafted,
            f"{plain / 3:.2f} s to {drafted / 3:.2f} s a query: {100 * (1 - drafted / plain):.0f} % less",
            "texts that are to be repeated, drafted from the prompt; others gain nothing, and lose nothing",
        )
