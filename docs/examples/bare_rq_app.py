"""A web app that queues prompts with RQ alone: nothing of Pagemill is installed beside it.

pip install rq starlette uvicorn
REDIS_URL=redis://localhost:6379/0 uvicorn --app-dir docs/examples bare_rq_app:app
"""

import json
import os

from redis import Redis, RedisError
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

connection = Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
queue = Queue("default", connection=connection, serializer="json")


async def ask(request: Request) -> JSONResponse:
    """Queue a prompt; answer with the job's id at once."""
    try:
        prompt = json.loads(await request.body())["prompt"]
    except (ValueError, KeyError, TypeError):
        return JSONResponse({"error": 'send {"prompt": "..."}'}, status_code=400)
    try:
        job_id = await run_in_threadpool(enqueue, prompt)
    except RedisError:
        return JSONResponse({"error": "try again in a moment"}, status_code=503)
    return JSONResponse({"id": job_id}, status_code=202)


def enqueue(prompt: str) -> str:
    job = queue.enqueue(
        "pagemill.prompt",
        {"schema_version": 1, "prompt": prompt, "max_tokens": 200},
        job_timeout=-1,  # a job ends by its own limits
        result_ttl=86_400,
    )
    return str(job.id)


def look(request: Request) -> JSONResponse:
    """Tell how far a job is; Starlette runs a plain function in a thread."""
    try:
        job = Job.fetch(request.path_params["job_id"], connection=connection, serializer="json")
        result = job.latest_result()
    except NoSuchJobError:
        return JSONResponse({"error": "no such job, or its result has expired"}, status_code=404)
    except RedisError:
        return JSONResponse({"error": "try again in a moment"}, status_code=503)
    status = job.get_status(refresh=False)
    answer: dict[str, object] = {"id": job.id, "status": str(status.value if status else None)}
    if result is not None and result.return_value is not None:
        answer["text"] = result.return_value["text"]
    elif result is not None:
        answer["error"] = result.exc_string  # one line, such as "context_length: ..."
    return JSONResponse(answer)


app = Starlette(routes=[Route("/jobs", ask, methods=["POST"]), Route("/jobs/{job_id}", look)])
