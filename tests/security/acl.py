"""A server whose users are exactly those of docs/security.md."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tests.servers import running_server
from worker.queue.connection import connect

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "security.md"
ADMIN = "user admin on >admin-password ~* &* +@all"


def documented_users() -> dict[str, str]:
    """Return the document's ACL lines by the user's name."""
    (block,) = re.findall(r"^```acl\n(.*?)^```", DOCUMENT.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return {line.split()[1]: line for line in block.splitlines()}


@dataclass(frozen=True)
class AclServer:
    """A running server and its administrator's connections; `admin` gives text, `bytes_admin` what ours give."""

    socket_path: Path
    admin: Any
    bytes_admin: redis.Redis

    def url(self, user: str) -> str:
        return f"unix://{user}:{user}-password@{self.socket_path}"

    @contextmanager
    def connected(self, user: str) -> Iterator[redis.Redis]:
        with closing(connect(self.url(user), self.socket_path.parent)) as connection:
            yield connection

    def job_ids(self) -> list[str]:
        """Return the ids of all jobs that have a record."""
        return [key.removeprefix("rq:job:") for key in self.admin.keys("rq:job:*")]

    def refusals(self) -> set[tuple[str, str]]:
        """Return (user, what was refused) since the last call."""
        refused = {(entry["username"], entry["object"]) for entry in self.admin.acl_log()}
        self.admin.acl_log_reset()
        return refused

    def reset(self) -> None:
        """Empty the server, and give its users their documented rights again."""
        self.admin.flushall()
        for name, line in documented_users().items():
            self.admin.execute_command("ACL", "SETUSER", name, "reset", *line.split()[2:])
        self.admin.acl_log_reset()


@contextmanager
def acl_server(name: str, folder: Path) -> Iterator[AclServer]:
    acl_file = folder / "users.acl"
    acl_file.write_text("\n".join((*documented_users().values(), ADMIN, "")))
    with running_server(name, folder, f"aclfile {acl_file}") as socket_path:
        admin = redis.Redis(
            unix_socket_path=str(socket_path), username="admin", password="admin-password", decode_responses=True
        )
        url = f"unix://admin:admin-password@{socket_path}"
        with closing(admin), closing(connect(url, folder)) as bytes_admin:
            yield AclServer(socket_path, admin, bytes_admin)
