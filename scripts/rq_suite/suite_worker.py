"""The worker under test: the production class without its two restrictions.

RQ's tests enqueue whatever function they like and pickle their arguments. A production worker reads JSON only and runs
what its allow-list names; nothing in the settings changes that. It takes code, this code, which is not installed.
"""

from collections.abc import Mapping
from typing import Any

from rq.job import Job

from worker.functions.allow_list import AllowList
from worker.queue.queue_records import Fields, FunctionRecord
from worker.rq_worker import PagemillWorker
from worker.settings_model import Settings


class SuiteWorker(PagemillWorker):
    """A `PagemillWorker` for any function, with the serializer, queues and job class that RQ is told to use."""

    job_class = Job

    def allow(self, allow_list: AllowList) -> None:
        """Restrict nothing."""

    def read(self, fields: Fields) -> FunctionRecord:
        """Take every record for a function's."""
        return FunctionRecord()

    @staticmethod
    def _restricted(options: Mapping[str, Any]) -> dict[str, Any]:
        return dict(options)

    def _settings_of_work(self) -> Settings:
        return Settings()
