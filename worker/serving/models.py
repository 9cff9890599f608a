"""`/v1/models`: what living workers serve."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from worker.openai_api.errors import model_refusal
from worker.serving.fleet import ServedModel
from worker.serving.services import Services


async def list_models(request: Request) -> JSONResponse:
    """Answer with all of them."""
    return JSONResponse({"object": "list", "data": [_document(model) for model in await _models(request)]})


async def show_model(request: Request) -> JSONResponse:
    """Answer with one."""
    name, models = request.path_params["name"], await _models(request)
    for model in models:
        if model.name == name:
            return JSONResponse(_document(model))
    served = ", ".join(model.name for model in models)
    raise model_refusal(name, f"{served} is" if served else "no worker is running")


async def _models(request: Request) -> tuple[ServedModel, ...]:
    services: Services = request.app.state.services
    return (await services.fleet.state()).models


def _document(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": int(model.since.timestamp()), "owned_by": "pagemill"}
