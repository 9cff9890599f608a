"""vLLM as a peer of `scripts/bench engine`: run by the Python of its own virtual environment, never a dependency.

Reads {"model", "dtype", "requests": [{"prompt", "output_tokens"}], "max_model_len", "started"} from the file it is
given and writes the fields of `scripts.benchmarks.systems.RunResult` to the second. Uses nothing of Pagemill.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams

WARM_UP_TOKENS = 8


def main() -> None:
    """Serve the requests once and write what it took."""
    task = json.loads(Path(sys.argv[1]).read_text())
    engine = LLM(
        model=task["model"],
        dtype=task["dtype"],
        max_model_len=task["max_model_len"],
        enable_prefix_caching=True,
        generation_config="vllm",
        seed=0,
    )
    load_s = time.time() - task["started"]
    serve(engine, [{"prompt": task["requests"][0]["prompt"][:WARM_UP_TOKENS], "output_tokens": 1}])
    first_token_s = time.time() - task["started"]
    begun = time.perf_counter()
    outputs = serve(engine, task["requests"])
    result = {
        "load_s": load_s,
        "first_token_s": first_token_s,
        "serve_s": time.perf_counter() - begun,
        "serve_cpu_s": None,
        "peak_rss_bytes": peak_rss_bytes(),
        "steps": None,
        "prefix_hit_tokens": None,
        "drafted_tokens": None,
        "accepted_tokens": None,
        "outputs": outputs,
    }
    Path(sys.argv[2]).write_text(json.dumps(result))


def serve(engine: LLM, requests: list[dict[str, Any]]) -> list[list[int]]:
    """Generate exactly the asked number of tokens for each prompt, greedily."""
    outputs = engine.generate(
        [{"prompt_token_ids": request["prompt"]} for request in requests],
        [
            SamplingParams(temperature=0.0, max_tokens=request["output_tokens"], ignore_eos=True, detokenize=False)
            for request in requests
        ],
        use_tqdm=False,
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


def peak_rss_bytes() -> int:
    """Return the peak of the largest of this process and those that it began: the one that holds the model."""
    return max(_peak_bytes(process) for process in _descendants(os.getpid()))


def _descendants(process: int) -> Iterator[int]:
    yield process
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from _descendants(int(child))


def _peak_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


if __name__ == "__main__":
    main()
