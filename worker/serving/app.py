"""The application: which path is answered by what."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker.errors import PagemillError
from worker.openai_api.fields import Endpoint
from worker.serving.access_log import CLIENT_CLOSED, AccessLog
from worker.serving.batches import cancel_batch, create_batch, list_batches, show_batch
from worker.serving.completions import completions
from worker.serving.errors import ClientGone, on_bug, on_http_error, on_pagemill_error
from worker.serving.files import delete_file, download_file, list_files, show_file, upload_file
from worker.serving.health import healthz, livez
from worker.serving.metrics import metrics
from worker.serving.models import list_models, show_model
from worker.serving.services import Services

Handler = Callable[[Request], Awaitable[Response]]


def make_app(services: Services) -> Starlette:
    """Return the application that works with `services`."""
    app = Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/livez", livez),
            Route("/metrics", metrics),
            Route("/v1/models", _known(list_models)),
            Route("/v1/models/{name:path}", _known(show_model)),
            Route("/v1/files", _known(upload_file), methods=["POST"]),
            Route("/v1/files", _known(list_files)),
            Route("/v1/files/{file_id}", _known(show_file)),
            Route("/v1/files/{file_id}", _known(delete_file), methods=["DELETE"]),
            Route("/v1/files/{file_id}/content", _known(download_file)),
            Route("/v1/batches", _known(create_batch), methods=["POST"]),
            Route("/v1/batches", _known(list_batches)),
            Route("/v1/batches/{batch_id}", _known(show_batch)),
            Route("/v1/batches/{batch_id}/cancel", _known(cancel_batch), methods=["POST"]),
            *(Route(endpoint, _known(completions(endpoint)), methods=["POST"]) for endpoint in Endpoint),
        ],
        middleware=[Middleware(AccessLog)],
        exception_handlers={
            PagemillError: on_pagemill_error,
            HTTPException: on_http_error,
            ClientGone: _nobody_is_there,
            Exception: on_bug,
        },
    )
    app.state.services = services
    return app


def _known(handler: Handler) -> Handler:
    """Return a handler that first finds out who asks, as `request.state.tenant`."""

    async def identified(request: Request) -> Response:
        services: Services = request.app.state.services
        tenant = await services.identities.tenant_of(request)
        request.state.tenant = request.state.log["tenant"] = tenant
        return await handler(request)

    return identified


async def _nobody_is_there(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)
