"""`/healthz` and `/livez` of the service. They ask for no key, and tell nothing but whether it works."""

import logging

from starlette.requests import Request
from starlette.responses import JSONResponse

from worker.errors import PagemillError
from worker.serving.services import Services

logger = logging.getLogger(__name__)


async def livez(request: Request) -> JSONResponse:
    """Answer that the process does."""
    return JSONResponse({"alive": True})


async def healthz(request: Request) -> JSONResponse:
    """Answer whether requests would be served: the queue and SQL answer, and a worker is alive."""
    services: Services = request.app.state.services
    try:
        state = await services.fleet.state()
    except PagemillError as error:
        logger.warning("the service is not healthy: %s", error)
        return _answer(problem="the queue or the database does not answer", num_workers=None)
    return _answer(None if state.num_workers else "no worker is running", state.num_workers)


def _answer(problem: str | None, num_workers: int | None) -> JSONResponse:
    document = {"healthy": problem is None, "problems": [problem] if problem else [], "workers": num_workers}
    return JSONResponse(document, status_code=200 if problem is None else 503, headers={"Cache-Control": "no-store"})
