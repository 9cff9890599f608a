"""`/v1/chat/completions` and `/v1/completions`: a job each, answered when it is done or as it is generated."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from worker.client import JobNotDone, NewJob, OutputPiece, prepare
from worker.errors import PagemillError, TryLater
from worker.openai_api.errors import ApiError, ErrorType
from worker.openai_api.fields import Endpoint
from worker.openai_api.requests import parse_request
from worker.openai_api.responses import Chunks, ResponseHead, Usage, choices_of, completion
from worker.openai_api.tool_stream import ToolStream
from worker.records import JobState
from worker.serving.admission import admit
from worker.serving.attendance import attended
from worker.serving.bodies import read_json
from worker.serving.errors import AWAY, STOPPING, as_response, error_of_end, logger
from worker.serving.event_stream import DONE, SIGN_OF_LIFE, EventStream, as_event
from worker.serving.services import Services

FIRST_EVENT_SECONDS = 5.0  # a stream that fails until then does so with a status of its own
SIGN_OF_LIFE_SECONDS = 15.0  # between two of a stream that waits
SLACK_SECONDS = 5.0  # the job's deadline comes first, and says why
TIMED_OUT = ApiError(504, "the answer took too long", ErrorType.SERVER, None, "deadline_exceeded")

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Call:
    """A request that has become a job."""

    services: Services
    request: Request
    head: ResponseHead
    include_usage: bool
    echo: bool  # the answer begins with the prompt
    may_call: bool  # a tool
    num_outputs: int

    @property
    def job_id(self) -> str:
        return self.head.job_id

    @property
    def longest_seconds(self) -> float:
        return self.services.settings.serve_timeout_seconds + SLACK_SECONDS


def completions(endpoint: Endpoint) -> Handler:
    """Return the handler of an endpoint."""

    async def answer(request: Request) -> Response:
        services: Services = request.app.state.services
        tenant, now = request.state.tenant, datetime.now(UTC)
        deadline = now + timedelta(seconds=services.settings.serve_timeout_seconds)
        parsed = parse_request(
            endpoint, await read_json(request), extra={"tenant": tenant, "deadline": deadline.isoformat()}
        )
        services.seats.take()
        try:
            await attended(request, services.closing, admit(services.fleet, services.settings, tenant))
            (job,) = prepare([parsed.payload])
            request.state.log["job_id"] = job.job_id
            model = str(parsed.payload.get("model") or await _model_name(services))
            head, echo = ResponseHead(endpoint, job.job_id, now, model), bool(parsed.payload.get("echo"))
            num_outputs = parsed.payload.get("n", 1)
            call = _Call(services, request, head, parsed.include_usage, echo, parsed.may_call, num_outputs)
            await _enqueue(call, job)
            response = await (_answer_as_it_comes(call) if parsed.stream else _answer_at_once(call))
        except BaseException:
            services.seats.leave()
            raise
        if not isinstance(response, EventStream):  # which leaves at its end
            services.seats.leave()
        return response

    return answer


async def _model_name(services: Services) -> str:
    """Return the model of a request that names none."""
    models = (await services.fleet.state()).models
    return models[0].name if models else "unknown"


async def _enqueue(call: _Call, job: NewJob) -> None:
    task = asyncio.create_task(call.services.client.enqueue([job]))
    try:
        await asyncio.shield(task)
    except BaseException:  # SQL may have it nevertheless, and then it would run for nobody
        call.services.cancel_soon(job.job_id, after=task)
        raise


@asynccontextmanager
async def _wanted(call: _Call) -> AsyncIterator[None]:
    """Cancel the job where the block ends by an error: nobody waits for it any more."""
    try:
        yield
    except BaseException:
        call.services.cancel_soon(call.job_id)
        raise


async def _answer_at_once(call: _Call) -> Response:
    async with _wanted(call):
        try:
            async with asyncio.timeout(call.longest_seconds):
                end = await attended(call.request, call.services.closing, call.services.client.end(call.job_id))
        except TimeoutError:
            call.services.cancel_soon(call.job_id)
            return as_response(TIMED_OUT)
    if end.state is not JobState.DONE or end.value is None:
        return as_response(error_of_end(end))
    choices = choices_of(end.value, echo=call.echo)
    of_prompt = (end.value.get("prompt_logprobs"), end.value.get("prompt_token_ids"))
    return JSONResponse(completion(call.head, choices, _usage(end.value), *of_prompt))


async def _answer_as_it_comes(call: _Call) -> Response:
    pieces = call.services.client.stream_outputs(call.job_id, timeout_seconds=call.longest_seconds)
    first = asyncio.ensure_future(_next(pieces))
    try:
        waiting = asyncio.wait({first}, timeout=FIRST_EVENT_SECONDS)
        await attended(call.request, call.services.closing, waiting)
        if first.done() and isinstance(error := first.exception(), JobNotDone):
            return as_response(error_of_end(error.end))
        if first.done():
            first.result()
    except BaseException:
        call.services.cancel_soon(call.job_id)
        call.services.chores.start(_let_go(first, pieces))
        raise
    return EventStream(
        _events(call, pieces, first),
        longest_seconds=call.longest_seconds + SLACK_SECONDS,
        chores=call.services.chores,
        on_end=call.services.seats.leave,
    )


async def _events(
    call: _Call, pieces: AsyncGenerator[OutputPiece], coming: asyncio.Future[OutputPiece | None]
) -> AsyncGenerator[str]:
    services, chunks = call.services, Chunks(call.head, include_usage=call.include_usage)
    tool_streams = [ToolStream() for _ in range(call.num_outputs)] if call.may_call else []
    closing = asyncio.ensure_future(services.closing.wait())
    has_ended = False
    try:
        for chunk in chunks.opening(call.num_outputs):
            yield as_event(chunk)
        while True:
            both: set[asyncio.Future[Any]] = {coming, closing}
            await asyncio.wait(both, timeout=SIGN_OF_LIFE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                piece = coming.result()
                if piece is None:
                    break
                if piece.index < call.num_outputs:  # others are not a worker's
                    for chunk in _chunks_of(piece, call.job_id, chunks, tool_streams):
                        yield as_event(chunk)
                coming = asyncio.ensure_future(_next(pieces))
            elif closing.done():
                yield as_event(STOPPING.body())
                return
            else:
                yield SIGN_OF_LIFE
        has_ended = True
        value = await services.client.result(call.job_id)
        assert value is not None, "a job whose output has ended is done"
        for chunk in chunks.usage(_usage(value)):
            yield as_event(chunk)
        yield DONE
    except JobNotDone as error:
        has_ended = True
        yield as_event(error_of_end(error.end).body())
    except PagemillError as error:
        logger.error("job %s cannot be streamed any further: %s", call.job_id, error)
        yield as_event((TIMED_OUT if isinstance(error, TryLater) else AWAY).body())
    finally:
        closing.cancel()
        services.chores.start(_let_go(coming, pieces))
        if not has_ended:
            services.cancel_soon(call.job_id)


def _chunks_of(
    piece: OutputPiece, job_id: str, chunks: Chunks, tool_streams: Sequence[ToolStream]
) -> Iterator[dict[str, Any]]:
    """Yield what a piece of an output is in chunks; with its last one, the end of that output."""
    content = tool_streams[piece.index].take(piece.text) if tool_streams else piece.text
    if content:
        yield chunks.text(piece.index, content)
    if piece.finish_reason is None:
        return
    if tool_streams:
        content, calls = tool_streams[piece.index].rest(piece.finish_reason, job_id, piece.index)
        if content:
            yield chunks.text(piece.index, content)
        yield from chunks.calls(piece.index, calls)
    yield chunks.closing(piece.index, piece.finish_reason)


async def _next(pieces: AsyncGenerator[OutputPiece]) -> OutputPiece | None:
    """Return the next piece, or None at the end."""
    return await anext(pieces, None)


async def _let_go(coming: asyncio.Future[Any], pieces: AsyncGenerator[OutputPiece]) -> None:
    coming.cancel()
    await asyncio.gather(coming, return_exceptions=True)
    await pieces.aclose()


def _usage(value: dict[str, Any]) -> Usage:
    return Usage(value["prompt_tokens"], value["completion_tokens"], value.get("cached_tokens"))
