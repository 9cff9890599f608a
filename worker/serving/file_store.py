"""Where files lie: their contents in a folder, under names that are ours, and the rest in SQL."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO
from uuid import uuid4

from worker.errors import TryLater
from worker.sql.api_files import ApiFile, ApiFiles

FOLDER = "files"  # in the data folder: 0700, each file 0600
ORPHAN_AGE_SECONDS = 86_400.0  # SQL may hear of a file only when all of it has come
PATHS_AT_ONCE = 500


class FileStore:
    """Keeps files. Every method may take a while: call it in a thread. Raises TryLater where the disk refuses, and as
    `worker.sql.api_files.ApiFiles` does."""

    def __init__(self, data_dir: Path, files: ApiFiles) -> None:
        self._folder = data_dir / FOLDER
        self.files = files

    def keep(
        self, tenant: str, filename: str, purpose: str, content: IO[bytes], lifetime: timedelta, limit_bytes: int
    ) -> ApiFile:
        """Keep a copy of `content`, from where it stands, for some time. Raises FileQuotaReached where the tenant would
        keep more than `limit_bytes`."""
        now = datetime.now(UTC)
        file = ApiFile(f"file-{uuid4().hex[:24]}", tenant, filename, purpose, 0, now, now + lifetime)
        return self.write(file, lambda target: shutil.copyfileobj(content, target), limit_bytes=limit_bytes)

    def write(self, file: ApiFile, fill: Callable[[IO[bytes]], object], *, limit_bytes: int | None = None) -> ApiFile:
        """Keep what `fill` writes as a file; return it with its size. It takes the place of one of the same id."""
        path = self.path(file.id)
        part = path.with_name(f"{file.id}.{uuid4().hex}.part")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
                    fill(target)
                    target.flush()
                    os.fsync(target.fileno())
                    num_bytes = target.tell()
                kept = replace(file, num_bytes=num_bytes)
                if limit_bytes is not None:
                    self.files.check_room(file.tenant, num_bytes, limit_bytes)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise TryLater(f"a file cannot be kept in {self._folder}: {error.strerror}") from None
        try:
            self.files.add(kept, limit_bytes=limit_bytes)
        except BaseException:
            if limit_bytes is not None:  # it is a new one, and nobody knows its id
                path.unlink(missing_ok=True)
            raise
        return kept

    def delete(self, tenant: str, file_id: str) -> bool:
        """Delete a tenant's file; returns whether there was one."""
        if not self.files.delete(tenant, file_id):
            return False
        self.path(file_id).unlink(missing_ok=True)
        return True

    def tidy(self) -> int:
        """Delete files that have expired, and what lies in the folder though SQL knows nothing of it; returns how many
        files that were. Any number of services may do so at once."""
        num_deleted = 0
        while expired := self.files.delete_expired():
            for file_id in expired:
                self.path(file_id).unlink(missing_ok=True)
            num_deleted += len(expired)
        for names in self._old_names():
            for name in names - self.files.known(names):
                self.path(name).unlink(missing_ok=True)
                num_deleted += 1
        return num_deleted

    def _old_names(self) -> Iterator[set[str]]:
        """Yield the names of what was written some time ago, a page at a time."""
        if not self._folder.is_dir():
            return
        latest = time.time() - ORPHAN_AGE_SECONDS
        names: set[str] = set()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < latest:
                    names.add(entry.name)
                if len(names) == PATHS_AT_ONCE:
                    yield names
                    names = set()
        yield names

    def path(self, file_id: str) -> Path:
        """Return where a file's content is; `file_id` is one that SQL knows."""
        return self._folder / file_id
