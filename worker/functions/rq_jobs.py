"""RQ's job as a worker reads it: it imports nothing that the allow-list does not know."""

from collections.abc import Callable
from typing import Any, ClassVar

from rq.job import Job, JobStatus

from worker.functions.allow_list import NO_FUNCTIONS, AllowList, FunctionRefused


class AllowListedJob(Job):
    """An RQ job that imports only what its allow-list knows, by default nothing, and never calls a webhook."""

    allow_list: ClassVar[AllowList] = NO_FUNCTIONS

    @property
    def func(self) -> Callable[..., Any]:
        if self.instance is not None:
            raise FunctionRefused("methods of objects are not among the functions that this worker may run")
        name = self.func_name
        self.allow_list.check(name)
        function: Callable[..., Any] = super().func
        self.allow_list.check_function(str(name), function)
        return function

    @property
    def success_callback(self) -> Any:
        return self._checked_callback(self._success_callback_name, lambda: super(AllowListedJob, self).success_callback)

    @property
    def failure_callback(self) -> Any:
        return self._checked_callback(self._failure_callback_name, lambda: super(AllowListedJob, self).failure_callback)

    @property
    def stopped_callback(self) -> Any:
        return self._checked_callback(self._stopped_callback_name, lambda: super(AllowListedJob, self).stopped_callback)

    def _checked_callback(self, name: str | None, get: Callable[[], Any]) -> Any:
        if not name:
            return None
        self.allow_list.check(name)
        callback = get()
        self.allow_list.check_function(name, callback)
        return callback

    def send_webhooks(self, status: str | JobStatus, *, exc_string: str | None = None) -> None:
        """Send none: their addresses come from whoever wrote the record."""
        if self.webhooks:
            self.log.warning("job %s: its webhooks are not sent; a worker takes no addresses from records", self.id)


def allow_listed(allow_list: AllowList) -> type[AllowListedJob]:
    """Return the job class that is bound to an allow-list."""
    return type(AllowListedJob.__name__, (AllowListedJob,), {"allow_list": allow_list})
