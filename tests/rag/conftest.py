"""Fixtures of the tests of documents: a model that is only a tokenizer, and a folder of documents."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from tokenizers import Tokenizer, models, pre_tokenizers

from worker.queue.connection import connect
from worker.rag.model import RagModel, open_model
from worker.settings_model import Settings

CONTEXT_TOKENS = 600


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A model's small files: each word is a token, and so is each sign. Its name is that of the scripted model."""
    folder = tmp_path / "scripted"
    folder.mkdir()
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT_TOKENS}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def settings(model_folder: Path, tmp_path: Path) -> Settings:
    """Settings that name the model."""
    return Settings(model=str(model_folder), data_dir=tmp_path / "data")


@pytest.fixture
def model(settings: Settings) -> RagModel:
    return open_model(settings)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """A folder of five documents; the last one is longer than the model's context."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for name in ("bees", "clocks", "maps", "tides"):
        (folder / f"{name}.txt").write_text(f"All about {name}. They are old. People like {name}.\n")
    paragraphs = (f"Chapter {number} is about rivers. " + "It goes on. " * 20 for number in range(40))
    (folder / "rivers.md").write_text("# The long book\n\n" + "\n\n".join(paragraphs))
    return folder


@pytest.fixture
def connection(embedded_data_dir: Path) -> Iterator[redis.Redis]:
    """The session's embedded queue, emptied."""
    with closing(connect(None, embedded_data_dir)) as connection:
        connection.flushdb()
        yield connection
        connection.flushdb()


@pytest.fixture
def sqlite_url(tmp_path: Path, migrated_sqlite_file: Path) -> str:
    """The URL of a database without rows."""
    return f"sqlite:///{shutil.copy(migrated_sqlite_file, tmp_path)}"
