"""Workers whose model is scripted, and what clients ask of them."""

from typing import Any

import openai
import redis

from tests.worker.fakes import ScriptedRunner, eventually, make_flow, running
from worker.jobs import PromptJob
from worker.sql.store import JobStore

SAYS_HELLO: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


def encode(job: PromptJob) -> list[int]:
    """Return a prompt's bytes, or those of the last message."""
    assert job.prompt or job.messages
    return list((job.prompt or (job.messages or ())[-1].text).encode())


def scripted(connection: redis.Redis, store: JobStore, runner: ScriptedRunner | None = None, **settings: Any) -> Any:
    """Run a worker until the block ends."""
    settings = {"beat_seconds": 0.2, **settings}
    return running(make_flow(connection, store, runner, encode=encode, **settings))


def wait_for_worker(store: JobStore) -> None:
    """Wait until SQL knows of a worker."""
    eventually(lambda: store.workers())


def turned_away(client: openai.OpenAI) -> openai.RateLimitError | None:
    """Return the error of a request that is turned away; None for one that is taken."""
    try:
        client.completions.create(model="scripted", prompt="a", timeout=1.0)
    except openai.RateLimitError as error:
        return error
    except openai.APITimeoutError:
        return None
    return None
