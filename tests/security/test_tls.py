"""TLS to Redis, as docs/security.md says: a private authority, certificates of clients, verification unless refused."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.security.certificates import Authority, make_authority, run_openssl
from tests.servers import knows_tls, running_server
from tests.services import missing_service
from tests.worker.fakes import answer, make_flow
from worker.client import Client
from worker.errors import ConfigurationError, ServiceUnavailable
from worker.queue.connection import connect
from worker.sql.store import JobStore

SECRET = "s3cr3t"


@dataclass(frozen=True)
class TlsServer:
    """A server that speaks TLS on a port, asks for a client's certificate and knows one user."""

    authority: Authority
    port: int

    def url(self, *options: Mapping[str, str | Path], host: str = "127.0.0.1") -> str:
        query = urlencode({name: str(value) for part in options for name, value in part.items()})
        return f"rediss://worker:{SECRET}@{host}:{self.port}/0?{query}"

    @property
    def trusted(self) -> dict[str, str | Path]:
        return {"ssl_ca_certs": self.authority.own.certificate}

    @property
    def known(self) -> dict[str, str | Path]:
        client = self.authority.folder / "client.crt"
        return {"ssl_certfile": client, "ssl_keyfile": client.with_suffix(".key")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    if not knows_tls("redis-server"):
        missing_service("this redis-server was built without TLS")
    folder = tmp_path_factory.mktemp("tls")
    authority = make_authority(folder)
    own = authority.issue("server", "127.0.0.1")
    authority.issue("client", "client")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lines = (
        *(f"tls-port {port}", "bind 127.0.0.1", f"tls-ca-cert-file {authority.own.certificate}"),
        *(f"tls-cert-file {own.certificate}", f"tls-key-file {own.key}", "tls-auth-clients yes"),
        *(f"user worker on >{SECRET} ~* &* +@all", "user default off"),
    )
    with running_server("redis-server", folder, *lines):
        yield TlsServer(authority, port)


def test_jobs_flow_through_tls(server: TlsServer, sqlite_store: JobStore, tmp_path: Path) -> None:
    url = server.url(server.trusted, server.known)
    with Client(url) as client, closing(connect(url, tmp_path)) as connection:
        job_id = client.submit("over TLS")
        make_flow(connection, sqlite_store).run(burst=True)
        assert (client.result(job_id) or {})["text"] == answer("over TLS")


def refusal(url: str, folder: Path) -> str:
    with pytest.raises(ServiceUnavailable) as caught:
        connect(url, folder)
    message = str(caught.value)
    assert message.startswith("cannot reach rediss://")
    assert SECRET not in message
    assert "\n" not in message
    return message


def test_unknown_authority_is_refused(server: TlsServer, tmp_path: Path) -> None:
    assert "certificate verify failed" in refusal(server.url(server.known), tmp_path)


def test_certificate_of_another_host_is_refused(server: TlsServer, tmp_path: Path) -> None:
    assert "certificate verify failed" in refusal(server.url(server.trusted, server.known, host="localhost"), tmp_path)
    lax = server.url(server.trusted, server.known, {"ssl_check_hostname": "false"}, host="localhost")
    with closing(connect(lax, tmp_path)) as connection:
        assert connection.ping()


def test_verification_is_off_only_where_the_url_says_so(server: TlsServer, tmp_path: Path) -> None:
    with closing(connect(server.url(server.known, {"ssl_cert_reqs": "none"}), tmp_path)) as connection:
        assert connection.ping()


def test_client_without_a_certificate_is_refused(server: TlsServer, tmp_path: Path) -> None:
    assert refusal(server.url(server.trusted), tmp_path)


def test_client_with_a_certificate_of_another_authority_is_refused(server: TlsServer, tmp_path: Path) -> None:
    stranger = make_authority(tmp_path).issue("client", "client")
    strange: dict[str, str | Path] = {"ssl_certfile": stranger.certificate, "ssl_keyfile": stranger.key}
    assert refusal(server.url(server.trusted, strange), tmp_path)


def test_wrong_password_is_refused_without_being_shown(server: TlsServer, tmp_path: Path) -> None:
    url = server.url(server.trusted, server.known).replace(SECRET, f"{SECRET}-wrong")
    with pytest.raises(ServiceUnavailable, match="refuses the user name or password") as caught:
        connect(url, tmp_path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_file_that_is_no_certificate_is_told(server: TlsServer, tmp_path: Path, option: str) -> None:
    (tmp_path / "no.pem").write_text("?")
    url = server.url({**server.trusted, **server.known, option: tmp_path / "no.pem"})
    assert refusal(url, tmp_path)


def test_encrypted_key_takes_its_password(server: TlsServer, tmp_path: Path) -> None:
    key = tmp_path / "client.key"
    run_openssl("pkey", "-in", server.known["ssl_keyfile"], "-aes256", "-passout", f"pass:{SECRET}", "-out", key)
    options = {**server.trusted, **server.known, "ssl_keyfile": key, "ssl_password": SECRET}
    with closing(connect(server.url(options), tmp_path)) as connection:
        assert connection.ping()


def test_plain_connection_to_a_tls_port_is_one_line(server: TlsServer, tmp_path: Path) -> None:
    with pytest.raises(ServiceUnavailable, match="cannot reach redis://"):
        connect(f"redis://127.0.0.1:{server.port}", tmp_path)


def test_tls_options_need_a_tls_url(server: TlsServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it goes with rediss://"):
        connect(server.url(server.trusted).replace("rediss://", "redis://"), tmp_path)
