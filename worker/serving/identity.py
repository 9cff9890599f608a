"""Who asks: the tenant of the key that came with a request."""

import asyncio
import time
from collections import OrderedDict

from starlette.requests import Request

from worker.jobs import DEFAULT_TENANT
from worker.openai_api.errors import ApiError, ErrorType, RequestRefused
from worker.sql.api_keys import ApiKeys

REMEMBERED_SECONDS = 5.0  # and so how long a revoked key is still good
MAX_REMEMBERED = 4_096
MAX_KEY_CHARACTERS = 512

NO_KEY = ApiError(
    401,
    "no API key; send one made with `pagemill keys add` as Authorization: Bearer ...",
    ErrorType.AUTHENTICATION,
    None,
    "missing_api_key",
)
BAD_KEY = ApiError(401, "the API key is unknown or revoked", ErrorType.AUTHENTICATION, None, "invalid_api_key")


class Identities:
    """Tells the tenant of a request. Keys are looked up in SQL, and remembered for some seconds."""

    def __init__(self, keys: ApiKeys, *, are_required: bool) -> None:
        """Where keys are not required, whoever sends none that is known is the default tenant."""
        self._keys = keys
        self.are_required = are_required
        self._remembered: OrderedDict[str, tuple[float, str | None]] = OrderedDict()

    async def tenant_of(self, request: Request) -> str:
        """Return the tenant. Raises RequestRefused where a key is required and there is no good one,
        ServiceUnavailable where SQL does not answer."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            return self._without(NO_KEY)
        tenant = await self._look_up(key) if len(key) <= MAX_KEY_CHARACTERS else None
        return tenant if tenant is not None else self._without(BAD_KEY)

    def _without(self, error: ApiError) -> str:
        if self.are_required:
            raise RequestRefused(error)
        return DEFAULT_TENANT

    async def _look_up(self, key: str) -> str | None:
        now = time.monotonic()
        known = self._remembered.get(key)
        if known is not None and now - known[0] < REMEMBERED_SECONDS:
            return known[1]
        tenant = await asyncio.to_thread(self._keys.tenant_of, key)
        self._remembered[key] = (now, tenant)
        self._remembered.move_to_end(key)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return tenant
