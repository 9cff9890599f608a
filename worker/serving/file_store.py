"""Where files lie: their contents in a folder, under names that are ours, and the rest in SQL."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO
from uuid import uuid4

from worker.errors import TryLater
from worker.sql.api_files import ApiFile, ApiFiles

FOLDER = "files"  # in the data folder: 0700, each file 0600


class FileStore:
    """Keeps files. Every method may take a while: call it in a thread. Raises TryLater where the disk refuses, and as
    `worker.sql.api_files.ApiFiles` does."""

    def __init__(self, data_dir: Path, files: ApiFiles) -> None:
        self._folder = data_dir / FOLDER
        self.files = files

    def keep(self, tenant: str, filename: str, purpose: str, content: IO[bytes]) -> ApiFile:
        """Keep a copy of `content`, from where it stands."""
        file = ApiFile(f"file-{uuid4().hex[:24]}", tenant, filename, purpose, 0, datetime.now(UTC))
        return self.write(file, lambda target: shutil.copyfileobj(content, target))

    def write(self, file: ApiFile, fill: Callable[[IO[bytes]], object]) -> ApiFile:
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
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise TryLater(f"a file cannot be kept in {self._folder}: {error.strerror}") from None
        kept = replace(file, num_bytes=num_bytes)
        self.files.add(kept)
        return kept

    def delete(self, tenant: str, file_id: str) -> bool:
        """Delete a tenant's file; returns whether there was one."""
        if not self.files.delete(tenant, file_id):
            return False
        self.path(file_id).unlink(missing_ok=True)
        return True

    def path(self, file_id: str) -> Path:
        """Return where a file's content is; `file_id` is one that SQL knows."""
        return self._folder / file_id
