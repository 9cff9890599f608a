"""Jobs with several outputs, from the queue through the engine into SQL and back to the producer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import redis

from engine.forking import prompt_id_of
from engine.request import RequestError, TokenLogprobs
from engine.step_plan import Sampled, SchedulerOutput
from tests.worker.fakes import CONFIG, ENDLESS, EOS, ScriptedRunner, eventually, make_flow, running
from tests.worker.test_ledger import balance_of
from worker.client import JobEnd, ends, follow, submit
from worker.errors import InvalidJob
from worker.jobs import parse_job
from worker.queue.access import CancelOutcome, QueueAccess, TokenDelta
from worker.records import JobState
from worker.sql.lookups import JobDetail
from worker.sql.store import JobStore

LOGPROBS = (-0.5, -0.1, -0.9, -0.3)  # of every token of an output, by its index

STEPS_BEFORE_A_PAUSE = 20


@dataclass
class ForkedRunner(ScriptedRunner):
    """Answers each output of a prompt otherwise: with its index in the place of every letter."""

    fails_at: tuple[int, int] | None = None  # (output, position)
    ends_at: tuple[int, int] | None = None  # (output, position)
    pauses_until: Callable[[], bool] | None = None  # after some steps
    prompt_tokens: int = 0  # computed for prompts
    seeds: set[int] = field(default_factory=set)

    def run(self, plan: SchedulerOutput) -> Mapping[str, Sampled]:
        if self.pauses_until is not None and self.steps == STEPS_BEFORE_A_PAUSE:
            eventually(self.pauses_until)
        tokens = dict(super().run(plan))
        for share in plan.scheduled:
            request = share.request
            self.prompt_tokens += max(
                0,
                min(share.num_computed_tokens + share.num_scheduled_tokens, request.num_prompt_tokens)
                - share.num_computed_tokens,
            )
            if request.lacks_prompt_logprobs:
                request.prompt_logprobs = [TokenLogprobs(-1.0, ((97, -0.5),)), TokenLogprobs(-2.0, ())]
            if request.request_id not in tokens:
                continue
            self.seeds.add(request.params.seed)
            index = int(request.request_id.removeprefix(prompt_id_of(request.request_id)).lstrip("#") or 0)
            position = request.num_output_tokens
            if (index, position) == self.fails_at:
                tokens[request.request_id] = RequestError("numerical_error", "not finite")
                continue
            if (index, position) == self.ends_at:
                tokens[request.request_id] = (EOS,)
            if tokens[request.request_id] != (EOS,):
                tokens[request.request_id] = (ord(f"{index:x}"),)
            if request.params.logprobs is not None:
                request.logprobs.append(TokenLogprobs(LOGPROBS[index % 4], ()))
        return tokens


def published_outputs(connection: redis.Redis) -> list[set[int]]:
    """Return, for each job that has a stream, of which outputs something is in it."""
    return [{delta.index for delta in deltas} for deltas in published(connection)]


def published_ends(connection: redis.Redis) -> list[dict[int, str]]:
    """Return, for each job that has a stream, which outputs have ended, and why."""
    return [{one.index: one.finish_reason for one in deltas if one.finish_reason} for deltas in published(connection)]


def published(connection: redis.Redis) -> list[list[TokenDelta]]:
    """Return what is in each job's stream."""
    job_ids = [key.decode().removeprefix("pagemill:tokens:") for key in connection.scan_iter("pagemill:tokens:*")]
    access = QueueAccess(connection)
    return [[event.delta for event in access.read_tokens(job_id)] for job_id in job_ids]


def ended(connection: redis.Redis, store: JobStore, runner: ScriptedRunner, **job: Any) -> tuple[JobEnd, JobDetail]:
    """Run one job; return its end as its producer and as SQL see it."""
    (job_id,) = submit(connection, [{"max_tokens": 40, **job}])
    with running(make_flow(connection, store, runner)) as worker:
        (end,) = ends(connection, [job_id], timeout_seconds=30.0)
        worker.stop()
    detail = store.job(job_id)
    assert detail is not None
    return end, detail


def test_each_output_has_its_row_and_its_place(queue_connection: redis.Redis, store: JobStore) -> None:
    runner, prompt = ForkedRunner(), "abc" * 30
    end, detail = ended(queue_connection, store, runner, prompt=prompt, n=3, return_token_ids=True, max_tokens=5)
    assert end.value is not None
    assert end.value["text"] == "00000"
    assert end.value["choices"] == [
        {"index": index, "text": str(index) * 5, "finish_reason": "length", "token_ids": [ord(str(index))] * 5}
        for index in range(3)
    ]
    assert (end.value["prompt_tokens"], end.value["completion_tokens"]) == (90, 15)
    assert "mean_logprob" not in end.value, "nothing was chosen"
    assert detail.result is not None
    assert (detail.result.text, detail.result.completion_tokens) == ("00000", 15)
    assert [(choice.index, choice.text) for choice in detail.result.choices] == [(1, "11111"), (2, "22222")]
    assert runner.prompt_tokens == 90 + 2  # each fork begins with the prompt's last token
    assert len(runner.seeds) == 3
    assert detail.stats is not None
    assert detail.stats.kv_blocks_peak == 5 + 3
    assert detail.stats.kv_blocks_limit == 3 * 6
    balance_of(store)


def test_the_best_are_kept_best_first(queue_connection: redis.Redis, store: JobStore) -> None:
    end, detail = ended(queue_connection, store, ForkedRunner(), prompt="abc", n=2, best_of=4, max_tokens=5)
    assert end.value is not None
    assert [choice["text"] for choice in end.value["choices"]] == ["11111", "33333"]
    assert [choice["index"] for choice in end.value["choices"]] == [0, 1]
    assert end.value["completion_tokens"] == 20  # those that were not kept were generated too
    assert "logprobs" not in end.value
    assert detail.result is not None
    assert [choice.text for choice in detail.result.choices] == ["33333"]
    assert detail.result.logprobs is None
    assert [choice["mean_logprob"] for choice in end.value["choices"]] == pytest.approx([-0.1, -0.3])
    assert end.value["mean_logprob"] == end.value["choices"][0]["mean_logprob"] == detail.result.mean_logprob
    assert detail.result.choices[0].mean_logprob == end.value["choices"][1]["mean_logprob"]


def test_best_of_for_one_has_no_choices(connection: redis.Redis, sqlite_store: JobStore) -> None:
    end, detail = ended(connection, sqlite_store, ForkedRunner(), prompt="abc", best_of=3, logprobs=True)
    assert end.value is not None
    assert end.value["text"] == "11111"
    assert {entry["logprob"] for entry in end.value["logprobs"]} == {-0.1}
    assert "choices" not in end.value
    assert detail.result is not None
    assert end.value["mean_logprob"] == detail.result.mean_logprob == pytest.approx(-0.1)
    assert detail.result.choices == ()


def test_one_that_fails_fails_the_job(connection: redis.Redis, sqlite_store: JobStore) -> None:
    runner = ForkedRunner(fails_at=(2, 3))
    end, detail = ended(connection, sqlite_store, runner, prompt=ENDLESS, n=4, max_tokens=2000)
    assert end.state is JobState.FAILED
    assert detail.error_code == "numerical_error"
    assert detail.result is None
    assert runner.steps < 20  # the others do not go on
    balance_of(sqlite_store)


def test_cancelling_ends_all_and_keeps_what_there_is(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "n": 3, "max_tokens": 5000}])
    runner = ForkedRunner(step_seconds=0.001)
    flow = make_flow(connection, sqlite_store, runner)
    with running(flow) as worker:
        eventually(lambda: runner.steps > 10)
        assert QueueAccess(connection).cancel(job_id).outcome is CancelOutcome.CANCELLING
        eventually(lambda: sqlite_store.states([job_id])[job_id] is JobState.CANCELLED)
        eventually(lambda: flow.progress().held == 0)
        worker.stop()
    (result,) = sqlite_store.results([job_id]).values()
    assert result.finish_reason == "cancelled"
    texts = [result.text, *(choice.text for choice in result.choices)]
    assert [set(text) for text in texts] == [{"0"}, {"1"}, {"2"}]
    assert result.completion_tokens == sum(map(len, texts))
    balance_of(sqlite_store)


def test_more_outputs_than_the_engine_runs_at_once(connection: redis.Redis, sqlite_store: JobStore) -> None:
    config = replace(CONFIG, num_blocks=40, max_model_len=400, max_num_seqs=3, token_budget=64)
    ids = submit(connection, [{"prompt": f"prompt {number}", "n": 16, "max_tokens": 20} for number in range(3)])
    with running(make_flow(connection, sqlite_store, ForkedRunner(), config=config)) as worker:
        eventually(lambda: list(sqlite_store.states(ids).values()) == [JobState.DONE] * 3)
        worker.stop()
    assert [len(result.choices) for result in sqlite_store.results(ids).values()] == [15, 15, 15]


def test_a_stream_of_the_best_comes_at_its_end(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "best_of": 2, "max_tokens": 300}])
    runner = ForkedRunner(step_seconds=0.002)
    with running(make_flow(connection, sqlite_store, runner)) as worker:
        pieces = list(follow(connection, job_id, timeout_seconds=30.0))
        worker.stop()
    assert "".join(pieces) == "1" * 300


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 10**9}, "n: Input should be less than or equal to 16, got 1000000000"),
        ({"n": 0}, "n: Input should be greater than or equal to 1, got 0"),
        ({"n": 2.5}, "n: Input should be a valid integer"),
        ({"n": True}, "n: Input should be a valid integer"),
        ({"best_of": 17}, "best_of: Input should be less than or equal to 16, got 17"),
        ({"n": 4, "best_of": 3}, "best_of: 3 is below n, which is 4"),
        ({"prompt_logprobs": 100_000}, "prompt_logprobs: Input should be less than or equal to 20, got 100000"),
        ({"prompt_logprobs": -1}, "prompt_logprobs: Input should be greater than or equal to 0, got -1"),
        ({"echo": True}, "echo: gives back a raw prompt as it was sent; this job has a chat template"),
        ({"echo": "yes"}, "echo: Input should be a valid boolean"),
    ],
)
def test_bad_numbers_of_outputs_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        parse_job({"schema_version": 1, "prompt": "abc", **fields})


def test_token_ids_and_echo_cover_the_prompt(queue_connection: redis.Redis, store: JobStore) -> None:
    job = {"prompt": "ab", "raw": True, "echo": True, "n": 2, "return_token_ids": True, "max_tokens": 3}
    end, detail = ended(queue_connection, store, ForkedRunner(), **job)
    assert end.value is not None
    assert [choice["text"] for choice in end.value["choices"]] == ["ab000", "ab111"]
    assert (end.value["text"], end.value["prompt_token_ids"]) == ("ab000", [97, 98])
    assert detail.result is not None
    assert (detail.result.text, detail.result.prompt_token_ids) == ("000", [97, 98])


def test_log_probabilities_of_the_prompt_are_kept(queue_connection: redis.Redis, store: JobStore) -> None:
    end, detail = ended(queue_connection, store, ForkedRunner(), prompt="abc", n=2, prompt_logprobs=1, max_tokens=3)
    expected = [
        {"token_id": 97, "token": "a", "logprob": None, "top_logprobs": []},
        {
            "token_id": 98,
            "token": "b",
            "logprob": -1.0,
            "top_logprobs": [{"token_id": 97, "token": "a", "logprob": -0.5}],
        },
        {"token_id": 99, "token": "c", "logprob": -2.0, "top_logprobs": []},
    ]
    assert end.value is not None
    assert end.value["prompt_logprobs"] == expected
    assert detail.result is not None
    assert detail.result.prompt_logprobs == expected
