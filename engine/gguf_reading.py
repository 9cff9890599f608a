"""Faster reading of GGUF files by transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PlainData:
    """For a reader: what it maps is an array, not a `numpy.memmap`, whose slices take several times as long to make.

    A header is cut into millions of them, some for each token of the vocabulary.
    """

    @property
    def data(self) -> NDArray[Any]:
        return self._data

    @data.setter
    def data(self, mapped: NDArray[Any]) -> None:
        self._data = mapped.view(np.ndarray)


@contextmanager
def headers_read_once() -> Iterator[None]:
    """Let each file's header be read once until the block ends. transformers reads it for a configuration, for weights
    and for a tokenizer: that takes 12 s each time where there are 262,144 tokens, or 4 with `PlainData`.

    Without the package gguf, transformers says what it lacks.
    """
    if find_spec("gguf") is None:
        yield
        return
    gguf: Any = import_module("gguf")
    original = gguf.GGUFReader
    gguf.GGUFReader = cache(type("PlainReader", (PlainData, original), {}))
    try:
        yield
    finally:
        gguf.GGUFReader = original
