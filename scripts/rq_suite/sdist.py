"""RQ's released tests: its source distribution, taken from the package index once and checked."""

import hashlib
import importlib.metadata
import subprocess
import sys
import tarfile
from pathlib import Path

SHA256 = {"3.0.0": "b41e39b3c36ec3faf9e2402c638a0b25fe18ebb93a1cb15193bc69694f054618"}


class SuiteError(Exception):
    """The suite cannot be run; one line says why."""


def unpack_tests(folder: Path, cache: Path) -> Path:
    """Put the tests of the installed RQ's release into `folder`; return the folder of `tests/`.

    Without the package's code: what the tests import is the RQ that is installed. Raises SuiteError for a release
    whose hash is not known, and for a download that fails or differs.
    """
    version = importlib.metadata.version("rq")
    if version not in SHA256:
        raise SuiteError(f"rq {version} is installed; the suite knows the tests of {', '.join(SHA256)}")
    archive = _fetch(version, cache)
    root = f"rq-{version}"
    with tarfile.open(archive) as tar:
        wanted = [member for member in tar.getmembers() if member.name.startswith((f"{root}/tests/", f"{root}/pyproj"))]
        tar.extractall(folder, wanted, filter="data")
    return folder / root / "tests"


def _fetch(version: str, cache: Path) -> Path:
    archive = cache / f"rq-{version}.tar.gz"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "rq"]
        download = subprocess.run(
            [*command, "--dest", str(cache), f"rq=={version}"], capture_output=True, text=True, check=False
        )
        if download.returncode or not archive.exists():
            raise SuiteError(f"cannot download rq {version}: {(download.stderr.strip().splitlines() or ['?'])[-1]}")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256[version]:
        archive.unlink()
        raise SuiteError(f"rq-{version}.tar.gz has the SHA-256 {digest}, not {SHA256[version]}; it was deleted")
    return archive
