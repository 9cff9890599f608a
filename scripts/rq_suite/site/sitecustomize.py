"""Python imports this first in every process of the suite, rqworker's and spawned horses' too.

It turns RQ's default server into the suite's, and RQ's workers into ours. Nothing of RQ's tests is changed.
"""

import os
from typing import Any

from redis.connection import Connection

from scripts.rq_suite.environment import ADDRESS_VARIABLE, DEFAULT_PORT, WORKER_VARIABLE, Which

LOCAL_NAMES = ("localhost", "127.0.0.1")


def redirect(host: str, port: int) -> None:
    """Let connections to RQ's default server go to another; what a connection says of itself stays."""
    connect = Connection._connect

    def connect_there(self: Any) -> Any:
        if self.host not in LOCAL_NAMES or self.port != DEFAULT_PORT:
            return connect(self)  # type: ignore[no-untyped-call]
        there = (self.host, self.port)
        self.host, self.port = host, port
        try:
            return connect(self)  # type: ignore[no-untyped-call]
        finally:
            self.host, self.port = there

    Connection._connect = connect_there  # type: ignore[method-assign]


def take_our_worker() -> None:
    """Put our worker in the place of RQ's `Worker` and `SimpleWorker`, before anybody imports them by name."""
    import rq  # not at all in a run of RQ's own worker
    import rq.worker

    from scripts.rq_suite.suite_worker import SuiteWorker

    for name in ("Worker", "SimpleWorker"):
        setattr(rq, name, SuiteWorker)
        setattr(rq.worker, name, SuiteWorker)


if ADDRESS_VARIABLE in os.environ:
    address = os.environ[ADDRESS_VARIABLE].rpartition(":")
    redirect(address[0], int(address[2]))
    if os.environ[WORKER_VARIABLE] == Which.PAGEMILL:
        take_our_worker()
