"""Certificates of an authority of a test's own, made with the `openssl` program."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.services import missing_service


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder."""

    folder: Path
    own: Certificate

    def issue(self, name: str, host: str) -> Certificate:
        """Return a certificate for a host's name or address, for servers and clients alike."""
        issued = Certificate(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        kind = "IP" if host[:1].isdigit() else "DNS"
        run_openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-CA", self.own.certificate, "-CAkey", self.own.key, "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName={kind}:{host}", "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", issued.key, "-out", issued.certificate),
        )
        return issued


def make_authority(folder: Path) -> Authority:
    """Make an authority that nobody but the test trusts."""
    own = Certificate(folder / "ca.crt", folder / "ca.key")
    run_openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-subj", "/CN=authority", "-keyout", own.key, "-out", own.certificate),
    )
    return Authority(folder, own)


def run_openssl(*arguments: str | Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        missing_service("no openssl")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
