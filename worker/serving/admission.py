"""Whether a request may become a job now, or is better told to come again."""

from worker.openai_api.errors import ApiError, ErrorType
from worker.serving.errors import Turned, too_many
from worker.serving.fleet import Fleet
from worker.settings_model import Settings

NO_WORKER = ApiError(503, "no worker is running; try again when one is", ErrorType.SERVER, None, "no_worker")
QUEUE_SECONDS = 10  # what a client is told to wait where the queue is full
TENANT_SECONDS = 5
SEAT_SECONDS = 1


class Seats:
    """How many requests are answered at once. For one event loop."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._taken = 0

    def take(self) -> None:
        """Take one. Raises Turned where none is free."""
        if self._taken >= self._number:
            raise too_many(
                f"{self._number} requests are being answered, which is the limit", "too_many_requests", SEAT_SECONDS
            )
        self._taken += 1

    def leave(self) -> None:
        """Give one back."""
        self._taken -= 1


async def admit(fleet: Fleet, settings: Settings, tenant: str) -> None:
    """Return where a job of the tenant's would be run before long.

    Raises Turned where the queue is full, the tenant at its limit, or no worker comes within
    `serve_worker_wait_seconds`; ServiceUnavailable or TryLater where the queue or SQL does not answer.
    """
    state = await fleet.state()
    if state.num_waiting >= settings.serve_max_waiting:
        raise too_many("the queue is full", "queue_full", QUEUE_SECONDS)
    if state.is_at_limit(tenant):
        raise too_many("your limit is reached", "rate_limit_exceeded", TENANT_SECONDS)
    if not state.num_workers and not (await fleet.wait_for_workers(settings.serve_worker_wait_seconds)).num_workers:
        raise Turned(NO_WORKER)
