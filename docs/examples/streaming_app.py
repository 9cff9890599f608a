"""A web app that queues prompts and streams their outputs to the browser as server-sent events.

    pip install 'pagemill[serve]'
    pagemill worker --model ...
    REDIS_URL=redis://localhost:6379/0 uvicorn --app-dir docs/examples streaming_app:app

With DATABASE_URL set, jobs are recorded there too, and outlive a Redis that is lost.
"""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.routing import Route

from worker.async_client import AsyncClient
from worker.client import JobNotDone
from worker.errors import InvalidJob, PagemillError

PAGE = """<!doctype html><title>Ask</title>
<form><input name=prompt size=60 autofocus><button>Ask</button></form><pre></pre>
<script>
const out = document.querySelector("pre");
document.querySelector("form").onsubmit = async event => {
  event.preventDefault();
  out.textContent = "";
  const asked = await fetch("/jobs", {method: "POST", body: JSON.stringify({prompt: event.target.prompt.value})});
  const answer = await asked.json();
  if (!asked.ok) { out.textContent = answer.error; return; }
  const events = new EventSource(`/jobs/${answer.id}/events`);
  events.addEventListener("text", event => { out.textContent += JSON.parse(event.data); });
  events.addEventListener("failed", event => { out.textContent += ` [${JSON.parse(event.data)}]`; events.close(); });
  events.addEventListener("done", () => events.close());
};
</script>"""


async def page(request: Request) -> HTMLResponse:
    return HTMLResponse(PAGE)


async def ask(request: Request) -> JSONResponse:
    """Queue a prompt; answer with the job's id at once."""
    client: AsyncClient = request.app.state.client
    try:
        body = json.loads(await request.body())
        job_id = await client.submit({"prompt": body["prompt"], "max_tokens": 200})
    except (ValueError, KeyError, TypeError):
        return JSONResponse({"error": 'send {"prompt": "..."}'}, status_code=400)
    except InvalidJob as error:
        return JSONResponse({"error": str(error)}, status_code=400)
    except PagemillError:  # Redis is down or full: what is wrong there is nothing for a browser
        return JSONResponse({"error": "try again in a moment"}, status_code=503)
    return JSONResponse({"id": job_id}, status_code=202)


async def events(request: Request) -> StreamingResponse:
    """Stream a job's output. Any number of browsers at once share one connection to Redis."""
    client: AsyncClient = request.app.state.client
    return StreamingResponse(output_of(client, request.path_params["job_id"]), media_type="text/event-stream")


async def output_of(client: AsyncClient, job_id: str) -> AsyncGenerator[str]:
    try:
        async with aclosing(client.stream(job_id, timeout_seconds=600)) as texts:
            async for text in texts:
                yield event("text", text)
        yield event("done", "")
    except JobNotDone as error:
        yield event("failed", f"the job is {error.end.state.value}")
    except PagemillError:
        yield event("failed", "the answer cannot be followed now; try again in a moment")


def event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    redis_url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
    async with AsyncClient(redis_url, database_url=os.environ.get("DATABASE_URL")) as app.state.client:
        yield


app = Starlette(
    routes=[Route("/", page), Route("/jobs", ask, methods=["POST"]), Route("/jobs/{job_id}/events", events)],
    lifespan=lifespan,
)
