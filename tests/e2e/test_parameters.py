"""What jobs may ask of the sampler, with the real model: forms of output, log-probabilities, penalties, biases."""

import json
import math
from collections import Counter

import pytest

from tests.e2e.machine import Machine, eventually
from worker.records import JobState

pytestmark = pytest.mark.model

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "population": {"type": "integer"}},
    "required": ["city", "population"],
    "additionalProperties": False,
}


def test_forms_penalties_and_logprobs(embedded_machine: Machine) -> None:
    machine = embedded_machine
    formatted = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    question = {"prompt": "Describe a city.", "max_tokens": 80}
    asked = {"prompt": "Say la la la la la.", "max_tokens": 40, "ignore_eos": True}
    ids = machine.submit(
        question | {"response_format": formatted},
        question | {"response_format": formatted, "temperature": 1.0, "seed": 4},
        {"prompt": "Is water wet?", "regex": "(Yes|No)\\."},
        asked,
        asked | {"frequency_penalty": 2.0, "presence_penalty": 1.0},
        {"prompt": "Hello!", "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "return_token_ids": True},
        {"prompt": "Hello!", "max_tokens": 2, "logit_bias": {"28": 100}, "return_token_ids": True},
        {"prompt": "Hello!", "regex": "(("},
    )
    with machine.worker() as worker:
        eventually(lambda: machine.count(ids, JobState.DONE) == 7 and machine.count(ids, JobState.FAILED) == 1, worker)
    jobs = [machine.store.job(job_id) for job_id in ids]
    results = [job.result for job in jobs if job is not None and job.result is not None]
    assert len(results) == 7
    for result in results[:2]:
        city = json.loads(result.text)
        assert isinstance(city["population"], int)
        assert result.finish_reason == "stop"
    assert results[2].text in {"Yes.", "No."}
    most = [max(Counter(result.token_ids).values()) for result in results[3:5]]
    assert most[1] < most[0]
    logprobs = results[5].logprobs
    assert logprobs is not None
    assert [entry["token_id"] for entry in logprobs] == list(results[5].token_ids)
    for entry in logprobs:
        best = entry["top_logprobs"]
        assert len(best) == 2
        assert entry["logprob"] == best[0]["logprob"] >= best[1]["logprob"]  # greedy
        assert sum(math.exp(one["logprob"]) for one in best) <= 1.0 + 1e-5
    assert results[6].token_ids == (28, 28)
    assert results[6].logprobs is None
    refused = jobs[7]
    assert refused is not None
    assert refused.error_message is not None
    assert refused.error_message.startswith("regex: ")
