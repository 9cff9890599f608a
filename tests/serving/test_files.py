"""Files through the official client: kept as they are, each tenant's its own."""

from pathlib import Path

import httpx2
import openai
import pytest

from tests.serving.conftest import Serve
from worker.sql.api_keys import ApiKeys
from worker.sql.store import JobStore

LINES = b'{"custom_id": "a"}\n' * 50_000


def test_files_are_kept_listed_and_deleted(serving: Serve, tmp_path: Path) -> None:
    with serving() as served:
        client = served.client()
        sent = client.files.create(file=("../in.jsonl", LINES), purpose="batch")
        assert (sent.bytes, sent.filename, sent.purpose) == (len(LINES), "../in.jsonl", "batch")
        assert client.files.retrieve(sent.id) == sent
        assert client.files.content(sent.id).content == LINES
        others = [client.files.create(file=("b", b"x"), purpose="batch") for _ in range(3)]
        page = client.files.list(limit=2)
        assert [file.id for file in page.data] == [others[2].id, others[1].id]
        assert [file.id for file in page] == [file.id for file in (*reversed(others), sent)]
        assert client.files.delete(sent.id).deleted
        with pytest.raises(openai.NotFoundError, match="there is no file"):
            client.files.content(sent.id)
        kept = list((tmp_path / "data" / "files").iterdir())
        assert sorted(path.name for path in kept) == sorted(file.id for file in others)
        assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}


def test_files_of_others_are_not_there(serving: Serve, sqlite_store: JobStore) -> None:
    keys = ApiKeys(sqlite_store._engine)
    with serving(serve_keys="required") as served:
        mine, theirs = (served.client(keys.add(tenant, None).key) for tenant in ("mine", "theirs"))
        sent = mine.files.create(file=("a", b"x"), purpose="batch")
        assert list(theirs.files.list()) == []
        for action in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
            with pytest.raises(openai.NotFoundError):
                action(sent.id)
        assert mine.files.content(sent.id).content == b"x"


def test_what_is_no_file_is_refused(serving: Serve, tmp_path: Path) -> None:
    with serving(serve_max_file_bytes=1000) as served:
        client = served.client()
        url = f"{served.url}/v1/files"
        with pytest.raises(openai.APIStatusError, match="at most 1000 bytes") as large:
            client.files.create(file=("a", b"x" * 1001), purpose="batch")
        assert large.value.status_code == 413
        assert httpx2.post(url, files={"file": ("a", b"x" * 200_000)}, data={"purpose": "batch"}).status_code == 413
        with pytest.raises(openai.BadRequestError, match="'assistants' is not supported"):
            client.files.create(file=("a", b"x"), purpose="assistants")
        with pytest.raises(openai.BadRequestError, match="is empty"):
            client.files.create(file=("a", b""), purpose="batch")
        for bad in (
            httpx2.post(url, json={"purpose": "batch"}),
            httpx2.post(url, data={"purpose": "batch"}, files={"other": b"x"}),
            httpx2.post(url, content=b"x", headers={"content-type": "multipart/form-data"}),
            httpx2.post(url, content=b"--a\r\nx", headers={"content-type": "multipart/form-data; boundary=a"}),
            httpx2.get(url, params={"limit": "0"}),
            httpx2.get(url, params={"limit": "9" * 5000}),
        ):
            assert bad.status_code == 400, bad.text
            assert bad.json()["error"]["message"]
        assert httpx2.get(f"{url}/..%2f..%2fpagemill.db/content").status_code == 404
        assert not (tmp_path / "data" / "files").exists()
