"""Every error code that the code can produce has its class."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.error_classes import ERROR_CLASSES, ErrorClass, classify
from worker.errors import InvalidJob

ROOT = Path(__file__).resolve().parents[2]
RAISED = {"RequestError": 0, "RecordError": 0}  # exceptions, and the place of the code among their arguments
CALLED = {"failed": 1, "DeadRecord": 2, "_dead_record": 1}  # likewise of functions
KEYWORDS = {"code", "error_code"}
DEFAULTS = {"invalid_job"}  # of InvalidJob


def constants(tree: ast.Module) -> dict[str, str]:
    """Return the names of a module that stand for strings, tuples' first ones included."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value.elts[0] if isinstance(node.value, ast.Tuple) and node.value.elts else node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[node.targets[0].id] = value.value
    return found


def code_expressions(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what stands where an error code belongs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            place = RAISED.get(name, CALLED.get(name))
            if place is not None and len(node.args) > place:
                yield node.args[place]
            yield from (keyword.value for keyword in node.keywords if keyword.arg in KEYWORDS)
            yield from (
                keyword.value.elts[0]
                for keyword in node.keywords
                if keyword.arg == "error" and isinstance(keyword.value, ast.Tuple)
            )
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "error_code":
                    yield value


def codes_of(folder: str) -> Iterator[tuple[str, str]]:
    """Yield (code, place) for each error code that a folder's modules name."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / folder).rglob("*.py"))}
    names = {name: code for tree in trees.values() for name, code in constants(tree).items()}
    for path, tree in trees.items():
        for expression in code_expressions(tree):
            place = f"{path.relative_to(ROOT)}:{expression.lineno}"
            if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
                yield expression.value, place
            elif isinstance(expression, ast.Name) and expression.id in names:
                yield names[expression.id], place


@pytest.mark.parametrize("folder", ["engine", "worker"])
def test_every_code_has_a_class(folder: str) -> None:
    places = dict(codes_of(folder))
    assert len(places) > 3, "the walk finds the codes"
    unclassified = {code: place for code, place in places.items() if code not in ERROR_CLASSES}
    assert not unclassified


def test_no_class_is_for_a_code_that_nobody_has() -> None:
    known = {code for folder in ("engine", "worker") for code, _ in codes_of(folder)} | DEFAULTS
    assert InvalidJob("field", "message").code in DEFAULTS
    assert ERROR_CLASSES.keys() <= known


def test_unknown_codes_may_pass() -> None:
    assert classify("never heard of") is ErrorClass.TRANSIENT
