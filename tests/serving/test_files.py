"""Files through the official client: kept as they are, each tenant's its own."""

import io
import os
from datetime import timedelta
from pathlib import Path

import httpx2
import openai
import pytest

from tests.serving.conftest import Serve
from tests.worker.fakes import eventually
from worker.serving.file_store import FileStore
from worker.sql.api_files import ApiFiles
from worker.sql.api_keys import ApiKeys
from worker.sql.store import JobStore
from worker.sql.tables import utc_now

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


def test_files_expire_when_their_sender_says(serving: Serve) -> None:
    with serving(serve_file_days=2) as served:
        client = served.client()
        days = client.files.create(file=("a", b"x"), purpose="batch")
        hours = client.files.create(
            file=("b", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
        )
        assert days.expires_at == days.created_at + 2 * 86_400
        assert hours.expires_at == hours.created_at + 7200
        for expires_after, name in (
            ({"anchor": "created_at", "seconds": 60}, "seconds"),
            ({"anchor": "created_at", "seconds": "soon"}, "seconds"),
            ({"anchor": "now", "seconds": 7200}, "anchor"),
            ({"seconds": 7200}, "anchor"),
            ({"anchor": "created_at"}, "seconds"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                client.files.create(file=("c", b"x"), purpose="batch", expires_after=expires_after)  # type: ignore[arg-type]
            assert refused.value.param == f"expires_after[{name}]"
        assert len(client.files.list().data) == 2


def test_a_tenant_keeps_no_more_than_its_share(serving: Serve, sqlite_store: JobStore, tmp_path: Path) -> None:
    keys = ApiKeys(sqlite_store._engine)
    with serving(serve_keys="required", serve_tenant_file_bytes=1000) as served:
        mine, theirs = (served.client(keys.add(tenant, None).key) for tenant in ("mine", "theirs"))
        sent = mine.files.create(file=("a", b"x" * 900), purpose="batch")
        with pytest.raises(openai.APIStatusError) as refused:
            mine.files.create(file=("b", b"x" * 101), purpose="batch")
        assert refused.value.status_code == 413
        assert (refused.value.param, refused.value.code) == ("file", "file_quota_reached")
        assert "has 101 bytes, and the tenant keeps 900 bytes of files, of 1000 at most" in str(refused.value)
        theirs.files.create(file=("b", b"x" * 1000), purpose="batch")
        mine.files.delete(sent.id)
        mine.files.create(file=("b", b"x" * 1000), purpose="batch")
        assert len(list((tmp_path / "data" / "files").iterdir())) == 2


def test_what_has_expired_or_nobody_knows_is_deleted(sqlite_store: JobStore, tmp_path: Path) -> None:
    time = utc_now()
    store = FileStore(tmp_path, ApiFiles(sqlite_store._engine, clock=lambda: time))
    hour, day = (store.keep("t", "n", "batch", io.BytesIO(b"x"), timedelta(hours=n), 100) for n in (1, 24))
    orphans = [store.path("file-orphan"), store.path("file-1.2.part"), store.path("file-new")]
    for path in orphans:
        path.write_bytes(b"x")
    for path in (*orphans[:2], store.path(day.id)):
        os.utime(path, (0, 0))
    assert store.tidy() == 2
    assert not any(path.exists() for path in orphans[:2])
    time += timedelta(hours=2)
    assert store.files.find("t", hour.id) is None
    assert store.files.latest("t", 9, purpose=None, after=None) == [day]
    assert not store.delete("t", hour.id)
    assert store.tidy() == 1
    assert {path.name for path in store.path(day.id).parent.iterdir()} == {day.id, "file-new"}


def test_a_service_deletes_what_has_expired(serving: Serve, sqlite_store: JobStore, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "data", ApiFiles(sqlite_store._engine))
    file = store.keep("default", "n", "batch", io.BytesIO(b"x"), timedelta(0), 100)
    with serving():
        eventually(lambda: not store.path(file.id).exists())


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
        form = {"purpose": "batch", "colour": "red"}
        unknown = httpx2.post(url, files={"file": ("a", b"x")}, data=form)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "unknown_parameter")
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
