"""Request bodies to jobs: strictly. What is not understood is refused; nothing is dropped or changed."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.errors import InvalidJob
from worker.jobs import shorten
from worker.openai_api.errors import (
    MISSING_PARAMETER,
    UNKNOWN_PARAMETER,
    UNSUPPORTED_VALUE,
    RequestRefused,
    error_of,
    refusal,
)
from worker.openai_api.fields import DEFAULTS, FIELDS, REQUIRED, Endpoint
from worker.queue.submission import valid_payload


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request that can be served: the JSON object of its job, and how its answer is wanted."""

    payload: Mapping[str, Any]  # checked, defaults left out
    stream: bool  # as server-sent events
    include_usage: bool  # a last event tells the usage

    @property
    def may_call(self) -> bool:
        """Whether the answer may be a call of a tool."""
        return "tools" in self.payload and self.payload.get("tool_choice") != "none"


def parse_endpoint(url: Any) -> Endpoint:
    """Return the endpoint of a path. Raises RequestRefused for one that is not served."""
    if isinstance(url, str) and url in tuple(Endpoint):
        return Endpoint(url)
    raise refusal("url", f"{shorten(url)} is not served; the endpoints are {', '.join(Endpoint)}", "invalid_url")


def parse_request(
    endpoint: Endpoint,
    body: Any,
    *,
    defaults: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> ParsedRequest:
    """Return what a request's body, as JSON gave it, asks for.

    `defaults` are a job's fields that hold where the body does not say, in place of OpenAI's; `extra` are fields of the
    service's own, such as the tenant. Raises RequestRefused naming the first field at fault.
    """
    if not isinstance(body, Mapping):
        raise refusal(None, f"the body must be a JSON object, got {shorten(body)}", "invalid_body")
    given = {name: value for name, value in body.items() if value is not None}
    fields = {**DEFAULTS[endpoint], **(defaults or {}), **_job_fields(endpoint, given), **(extra or {})}
    if fields.get("echo") is True and fields.get("logprobs"):  # then those of the prompt too
        fields.setdefault("prompt_logprobs", fields["top_logprobs"])
    stream, include_usage = _streaming(given)
    for name in ("logprobs", "prompt_logprobs", "return_token_ids"):
        if stream and (value := fields.get(name)) is not None and value is not False:
            raise refusal(name, "is not supported with stream; ask for the whole answer", UNSUPPORTED_VALUE)
    try:
        payload = valid_payload(fields)
    except InvalidJob as error:
        raise RequestRefused(error_of(error)) from None
    if stream:
        _check_outputs_of_stream(payload)
    return ParsedRequest(payload, stream, include_usage)


def _check_outputs_of_stream(payload: Mapping[str, Any]) -> None:
    """Refuse what cannot be told as it is generated."""
    n = payload.get("n", 1)
    if payload.get("best_of", n) > n:
        reason = "is not supported with stream: which outputs are best is known when all have ended"
        raise refusal("best_of", f"{payload['best_of']} {reason}", UNSUPPORTED_VALUE)


def _job_fields(endpoint: Endpoint, given: Mapping[str, Any]) -> dict[str, Any]:
    rules = FIELDS[endpoint]
    fields: dict[str, Any] = {}
    for name, value in given.items():
        rule = rules.get(name)
        if rule is None:
            raise refusal(None, _unknown(name, endpoint), UNKNOWN_PARAMETER)
        for field, translated in rule(name, value).items():
            fields[field] = _combined(name, field, fields[field], translated) if field in fields else translated
    if REQUIRED[endpoint] not in given:
        raise refusal(REQUIRED[endpoint], "is required", MISSING_PARAMETER)
    return fields


def _combined(name: str, field: str, first: Any, second: Any) -> Any:
    """Return what two of a request's fields say together of one field of the job."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        clash = next((key for key in first.keys() & second.keys() if first[key] != second[key]), None)
        if clash is None:
            return {**first, **second}
        raise refusal(name, f"metadata has another value for {shorten(clash)}")
    if first == second:
        return first
    raise refusal(name, f"{shorten(second)} contradicts {shorten(first)}, which {field} is given as elsewhere")


def _streaming(given: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether the answer is streamed, and with a last event about its usage."""
    stream = given.get("stream", False)
    if not isinstance(stream, bool):
        raise refusal("stream", f"must be true or false, got {shorten(stream)}")
    options = given.get("stream_options", {})
    if not isinstance(options, Mapping):
        raise refusal("stream_options", f"must be an object, got {shorten(options)}")
    if options and not stream:
        raise refusal("stream_options", "needs stream to be true")
    unknown = options.keys() - {"include_usage"}
    if unknown:
        raise refusal("stream_options", f"unknown field {shorten(min(unknown))}; it has include_usage")
    include_usage = options.get("include_usage", False)
    if not isinstance(include_usage, bool):
        raise refusal("stream_options.include_usage", f"must be true or false, got {shorten(include_usage)}")
    return stream, include_usage


def _unknown(name: str, endpoint: Endpoint) -> str:
    close = difflib.get_close_matches(name, FIELDS[endpoint], n=1)
    return f"unknown field {shorten(name)} for {endpoint.value}" + (f"; did you mean {close[0]}?" if close else "")
