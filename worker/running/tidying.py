"""What keeps a worker's database small and its reports fast: rolling up hours that are over, purging what is old."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Engine

from worker.errors import ServiceUnavailable
from worker.settings_model import Settings
from worker.sql.retention import Purger, PurgeScope
from worker.sql.rollups.rolling import Roller
from worker.sql.tables import utc_now

LONGEST_REST_SECONDS = 1.0
LATEST_COMMIT = timedelta(days=1)  # after a job's end

logger = logging.getLogger(__name__)


class TidyChore:
    """Rolls up and purges as the settings say. Of several workers one works at a time, and the others find it done."""

    def __init__(self, engine: Engine, settings: Settings, stopped: Callable[[], bool]) -> None:
        """`stopped` ends a round early."""
        self._roller = Roller(engine)
        self._purger = Purger(engine, sleep=lambda seconds: time.sleep(min(seconds, LONGEST_REST_SECONDS)))
        self._job_days = settings.retention_days
        self._text_days = settings.text_retention_days
        self._run_days = settings.schedule_retention_days
        self._stopped = stopped
        self._texts_purged_until: datetime | None = None  # jobs keep their place in time: none is looked at twice

    def run(self) -> None:
        """Do what is due. Raises ServiceUnavailable; anything else that goes wrong is logged."""
        try:
            self._tidy()
        except ServiceUnavailable:
            raise
        except Exception:  # nothing that is wrong with old rows may end the worker
            logger.exception("tidying the database failed")

    def _tidy(self) -> None:
        self._roller.run(stopped=self._stopped)
        if self._job_days is not None:
            purged = self._purger.run(_older_than(self._job_days), stopped=self._stopped)
            if purged.jobs:
                logger.info("purged %d jobs that ended more than %d days ago", purged.jobs, self._job_days)
        if self._text_days is not None:
            self._purge_texts(self._text_days)
        runs = self._purger.run_schedules(_older_than(self._run_days).before, stopped=self._stopped)
        if runs:
            logger.info("purged %d runs of schedules of more than %d days ago", runs, self._run_days)

    def _purge_texts(self, days: int) -> None:
        scope = replace(_older_than(days), texts_only=True, since=self._texts_purged_until)
        purged = self._purger.run(scope, stopped=self._stopped)
        if purged.jobs:
            logger.info("purged the texts of %d jobs that ended more than %d days ago", purged.jobs, days)
        if not self._stopped():
            self._texts_purged_until = scope.before - LATEST_COMMIT


def _older_than(days: int) -> PurgeScope:
    return PurgeScope(utc_now() - timedelta(days=days))
