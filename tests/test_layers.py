"""The import rules of the repository, checked on its source and, for the producer's path, in a fresh interpreter."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("kernels", "engine", "worker", "migrations")  # each may import itself and those before it
HEAVY = {"torch", "transformers", "triton", "sqlalchemy"}
TORCH_FREE_ENGINE = (
    *("block_pool", "block_hash", "cache_manager", "scheduler", "request", "config", "plan"),
    *("quantisation", "quantisation_config", "gguf_header"),
)
KERNELS_MAY_IMPORT = {"torch", "triton", "numpy"}
ENGINE_MAY_NOT_IMPORT = {"redis", "rq", "sqlalchemy", "alembic", "pydantic", "click", "rich"}


def sources() -> list[Path]:
    return sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def imported_packages(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level name of everything that a module imports, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import on line {node.lineno}"
            assert node.module is not None
            yield node.module.partition(".")[0]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_layers_import_downwards_only(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    above = set(LAYERS[LAYERS.index(layer) + 1 :]) | {"tests", "scripts"}
    imported = set(imported_packages(parse(path)))
    assert not imported & above
    if layer == "kernels":
        assert imported <= KERNELS_MAY_IMPORT | sys.stdlib_module_names | {"kernels"}
    if layer == "engine":
        assert not imported & ENGINE_MAY_NOT_IMPORT


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_imports_stand_at_the_top(path: Path) -> None:
    if path == ROOT / "kernels" / "ops.py":
        return  # Triton is imported on first use there: a machine without it can still run the reference
    for function in ast.walk(parse(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            local = [node.lineno for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
            assert not local, f"function-local import on line {local}"


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_only_settings_reads_the_environment(path: Path) -> None:
    if path == ROOT / "worker" / "settings.py":
        return
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            assert node.attr not in {"environ", "environb", "getenv", "putenv"}, f"line {node.lineno}"
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            assert not {alias.name for alias in node.names} & {"environ", "getenv"}, f"line {node.lineno}"


def modules_loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after running `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_tests_are_no_package() -> None:
    """A `tests/kernels/__init__.py` would hide the real package."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("name", TORCH_FREE_ENGINE)
def test_engine_core_imports_no_torch(name: str) -> None:
    assert not modules_loaded_by(f"import engine.{name}") & {"torch", "transformers", "triton"}


@pytest.mark.parametrize(
    "name",
    [
        *("worker.client", "worker.async_client", "worker.outbox", "worker.jobs", "worker.settings"),
        *("worker.cli.main", "worker.cli.submit"),
        *("worker.openai_api.requests", "worker.openai_api.responses"),
    ],
)
def test_producer_path_imports_nothing_heavy(name: str) -> None:
    assert not modules_loaded_by(f"import {name}") & HEAVY


def test_kernels_package_is_not_mistaken_for_hugging_faces() -> None:
    """transformers looks for a `kernels` package of its own maker; ours must not pass for it."""
    body = parse(ROOT / "kernels" / "__init__.py").body
    assert len(body) == 1, "kernels/__init__.py may hold a docstring only"
    assert isinstance(body[0], ast.Expr)
    assert isinstance(body[0].value, ast.Constant)
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("kernels")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert not (0, 18, 2) <= tuple(int(part) for part in version.split(".")) < (0, 19, 0)
    code = "from transformers.utils import is_kernels_available; print(is_kernels_available())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
