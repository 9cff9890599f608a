"""`/metrics` of the service: the fleet's figures. It asks for no key, as `/healthz`."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from worker.metrics.fleet_metrics import FleetMetrics
from worker.serving.services import Services


async def metrics(request: Request) -> Response:
    """Answer what Prometheus asks."""
    services: Services = request.app.state.services
    fleet = FleetMetrics(services.settings, services.store, services.connection)
    body, content_type = await asyncio.to_thread(fleet.expose, request.headers.get("accept"))
    return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})
