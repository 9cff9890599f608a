"""`pagemill doctor`: is everything in place?"""

import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import metadata
from typing import Any

import click
from rq.suspension import is_suspended

from engine.quantisation import describe_weights
from kernels.native.toolchain import COMPILERS, find_compiler, is_supported, products_of_cpu
from worker.cli.options import json_option, service_options
from worker.cli.output import print_json
from worker.cli.queues import opened_queue, queue_name
from worker.cli.stores import opened_store
from worker.cli.tables import print_table
from worker.errors import ConfigurationError, ExitCode, PagemillError
from worker.model_shape import locate_model, stored_weights
from worker.queue.policy import QueuePolicy
from worker.queue.redis_jobs import queue_names
from worker.settings import resolve_settings
from worker.settings_model import Settings
from worker.sql import schema
from worker.sql.database import parse_database_url, place_of
from worker.sql.fleet import WorkerDetail
from worker.worker_state import WORKER_HOURS, WorkerState, worker_state

OLDEST_REDIS = 7  # the first major version whose scripts may run while it is full
ENGINE_PACKAGES = ("torch", "triton", "transformers", "safetensors", "gguf")
ENGINE_HINT = "a worker needs it: pip install 'pagemill[engine]'"


class Verdict(StrEnum):
    """How a check ended. Only FAIL makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the report."""

    name: str
    verdict: Verdict
    detail: str
    exit_code: ExitCode = ExitCode.OK  # of a failure


@click.command()
@service_options
@json_option
def doctor(as_json: bool, **flags: Any) -> None:
    """Check the settings, Redis, the database, the model, the installed packages, and the workers that run.

    Exits 78 when something is misconfigured, 69 when a service cannot be reached. Shows no passwords.

    \b
    Examples:
      pagemill doctor
      pagemill doctor --redis-url redis://localhost:6379/0
    """
    checks = tuple(examine(flags))
    if as_json:
        print_json([{"check": check.name, "verdict": check.verdict, "detail": check.detail} for check in checks])
    else:
        print_table("Checks", ("check", "verdict", "detail"), [(c.name, c.verdict, c.detail) for c in checks])
    # A wrong configuration comes first: it may well be the reason why a service cannot be reached.
    sys.exit(max(check.exit_code for check in checks))


def examine(flags: dict[str, Any]) -> Iterator[Check]:
    """Yield the checks in the order in which a user would mend things."""
    yield Check("python", Verdict.OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield from _check_packages()
    yield _check_kernels_package()
    yield _check_compiler()
    try:
        resolved = resolve_settings(flags)
    except ConfigurationError as error:
        yield Check("settings", Verdict.FAIL, str(error), error.exit_code)
        return
    changed = [name for name, source in resolved.sources.items() if source != "default"]
    yield Check("settings", Verdict.OK, f"set: {', '.join(changed)}" if changed else "all defaults")
    for name, check in SERVICE_CHECKS.items():
        try:
            verdict, detail = check(resolved.settings)
            yield Check(name, verdict, detail, ExitCode.CONFIGURATION if verdict is Verdict.FAIL else ExitCode.OK)
        except PagemillError as error:
            yield Check(name, Verdict.FAIL, str(error), error.exit_code)


def _check_packages() -> Iterator[Check]:
    for name in ENGINE_PACKAGES:
        try:
            yield Check(name, Verdict.OK, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Check(name, Verdict.WARN, f"not installed; {ENGINE_HINT}")


def _check_kernels_package() -> Check:
    """Hugging Face's `kernels` distribution would hide our package of that name, or ours would hide it."""
    try:
        version = metadata.version("kernels")
    except metadata.PackageNotFoundError:
        return Check("kernels", Verdict.OK, "no other package of that name is installed")
    detail = f"Hugging Face's kernels {version} is installed beside ours: pip uninstall kernels"
    return Check("kernels", Verdict.FAIL, detail, ExitCode.CONFIGURATION)


def _check_compiler() -> Check:
    """A worker on a CPU compiles its kernels."""
    if not is_supported():
        return Check("C kernels", Verdict.OK, "this processor has no use for them")
    compiler = find_compiler()
    if compiler is None:
        hint = f"none of {', '.join(COMPILERS)} is on the path: a worker on this CPU runs without them, slower"
        return Check("C kernels", Verdict.WARN, hint)
    fastest = products_of_cpu()[0]
    return Check(
        "C kernels", Verdict.OK, f"a worker on this CPU has them compiled by {compiler}, to multiply in {fastest}"
    )


def _check_data_dir(settings: Settings) -> tuple[Verdict, str]:
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.data_dir):
            return Verdict.OK, f"{settings.data_dir} is writable"
    except OSError as error:
        return Verdict.FAIL, f"cannot write to {settings.data_dir}: {error.strerror}"


def _check_queue(settings: Settings) -> tuple[Verdict, str]:
    with opened_queue(settings) as connection:
        server = connection.info("server")
        policy = connection.info("memory").get("maxmemory_policy", "noeviction")
    version = server.get("valkey_version") or server["redis_version"]
    detail = f"{'Valkey' if 'valkey_version' in server else 'Redis'} {version} at {queue_name(settings)}"
    if int(version.partition(".")[0]) < OLDEST_REDIS:
        return Verdict.FAIL, f"{detail}; version {OLDEST_REDIS} or newer is needed"
    if policy != "noeviction":
        return Verdict.WARN, f"{detail}; maxmemory-policy {policy} may drop jobs, set noeviction"
    return Verdict.OK, detail


def _check_database(settings: Settings) -> tuple[Verdict, str]:
    url = settings.sql_url()
    schema.check(url)
    return Verdict.OK, f"{place_of(parse_database_url(url))} at revision {schema.head()}"


def _check_model(settings: Settings) -> tuple[Verdict, str]:
    if settings.model is None:
        return Verdict.WARN, "none is set; a worker needs PAGEMILL_MODEL or --model"
    path = locate_model(settings.model)
    if path is None:
        return Verdict.OK, f"{settings.model}, taken for a hub id; it is looked up when a worker starts"
    dtype = None if settings.dtype == "auto" else settings.dtype
    weights = describe_weights(stored_weights(settings.model), dtype, is_int8=settings.weights == "int8")
    return Verdict.OK, str(path) if weights is None else f"{path}: {weights}"


def _check_workers(settings: Settings) -> tuple[Verdict, str]:
    """Tell of each worker that should be alive whether its engine answers, not only its process."""
    now = datetime.now(UTC)
    try:
        schema.check(settings.sql_url())
        with opened_store(settings) as store:
            workers = [(worker, worker_state(worker, now, settings)) for worker in store.workers()]
    except PagemillError:
        return Verdict.WARN, "the database does not tell"
    since = now - timedelta(hours=WORKER_HOURS)
    live = [
        (worker, state)
        for worker, state in workers
        if state is not WorkerState.STOPPED and worker.last_heartbeat_at > since
    ]
    if not live:
        return Verdict.OK, "none is running"
    is_well = all(state is WorkerState.RUNNING for _, state in live)
    return Verdict.OK if is_well else Verdict.WARN, "; ".join(_describe(worker, state, now) for worker, state in live)


def _describe(worker: WorkerDetail, state: WorkerState, now: datetime) -> str:
    if state is WorkerState.SILENT:
        return f"{worker.record.name} has been silent for {(now - worker.last_heartbeat_at).total_seconds():.0f} s"
    if worker.engine_answered_at is None:
        return f"{worker.record.name} is {state}, its engine has not answered yet"
    age_seconds = max(0.0, (now - worker.engine_answered_at).total_seconds())
    return f"{worker.record.name} is {state}, its engine answered {age_seconds:.0f} s ago"


def _check_claims(settings: Settings) -> tuple[Verdict, str]:
    """Tell what people have stopped, and may have forgotten."""
    try:
        with opened_queue(settings) as connection:
            policy = QueuePolicy(connection)
            paused, parked = policy.paused(), policy.parked(queue_names(connection))
            suspended = is_suspended(connection)
    except PagemillError:
        return Verdict.WARN, "Redis does not tell"
    stopped = ["all queues are suspended (rq resume ends that)"] if suspended else []
    stopped += [f"{name} is paused (pagemill resume {name})" for name in sorted(paused)]
    limited = [f"{number} jobs of {name} wait for tenants' limits" for name, number in parked.items() if number]
    return Verdict.WARN if stopped else Verdict.OK, "; ".join([*stopped, *limited]) or "nothing is paused"


SERVICE_CHECKS: dict[str, Callable[[Settings], tuple[Verdict, str]]] = {
    "data folder": _check_data_dir,
    "queue": _check_queue,
    "database": _check_database,
    "model": _check_model,
    "claims": _check_claims,
    "workers": _check_workers,
}
