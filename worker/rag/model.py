"""The model that documents are split and summarised for: its tokenizer, its context, and what tells its versions apart.

A worker loads the model; here only its small files are read, with the `tokenizers` package, which needs no torch.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.errors import ConfigurationError, ServiceUnavailable
from worker.extras import import_extra
from worker.model_shape import locate_model, read_shape, short_name
from worker.settings_model import Settings

SAMPLES = 64  # of a weights file; two versions of a model differ almost everywhere
SAMPLE_BYTES = 65_536
TOKENIZER_FILE = "tokenizer.json"
PIECES_AT_ONCE = 2_048  # bounds the memory of one call of the tokenizer


class TokenCounter:
    """Counts tokens as the model does, special ones left out."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a `tokenizers.Tokenizer`."""
        self._tokenizer = tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text by itself."""
        counts: list[int] = []
        for start in range(0, len(texts), PIECES_AT_ONCE):
            batch = list(texts[start : start + PIECES_AT_ONCE])
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            counts += [len(encoding) for encoding in encodings]
        return counts


@dataclass(frozen=True, slots=True)
class RagModel:
    """A model as far as documents are concerned."""

    name: str  # what a worker that serves it answers to
    fingerprint: str  # another one for other weights
    tokenizer_hash: str
    max_model_len: int  # tokens of prompt and output together
    counter: TokenCounter
    limited_by: str = "the model's context"  # what max_model_len is

    def context(self, wanted_tokens: int | None) -> int:
        """Return the tokens that prompt and output may have together. Raises ConfigurationError where more are wanted
        than there are."""
        if wanted_tokens is None:
            return self.max_model_len
        if not 0 < wanted_tokens <= self.max_model_len:
            raise ConfigurationError(
                f"context: {wanted_tokens} is not between 1 and {self.max_model_len}, {self.limited_by}"
            )
        return wanted_tokens


def open_model(settings: Settings) -> RagModel:
    """Return the model that the settings name, a worker's own.

    The tokenizer of a GGUF file is converted once, which takes some seconds. Raises ConfigurationError for a model that
    is not set, not there or has no tokenizer, and ServiceUnavailable when the hub cannot be reached.
    """
    if settings.model is None:
        raise ConfigurationError("model: is not set; documents are split by its tokens (PAGEMILL_MODEL or --model)")
    path = locate_model(settings.model)
    if path is None:
        folder, fingerprint = _from_hub(settings.model)
    elif path.is_dir():
        folder, fingerprint = path, _fingerprint_of([*sorted(path.glob("*.safetensors")), path / "config.json"])
    else:
        fingerprint = _fingerprint_of([path])
        folder = settings.data_dir / "tokenizers" / f"{path.stem}-{fingerprint[:16]}"
        if not folder.is_dir():
            _convert(path, _workers_folder(path, settings.data_dir / "models"), folder)
    length = _context_of(folder)
    if length is None:
        raise ConfigurationError(f"model: the config of {settings.model} does not tell its context length")
    file = folder / TOKENIZER_FILE
    return RagModel(
        name=short_name(settings.model),
        fingerprint=fingerprint,
        tokenizer_hash=_file_hash(file),
        max_model_len=min(settings.max_model_len or length, length),
        counter=TokenCounter(_load(file)),
    )


def _load(file: Path) -> Any:
    tokenizers = import_extra("tokenizers", "splitting documents", extra="rag")
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises no other class, whatever is wrong with the file
        raise ConfigurationError(f"model: {file} is no tokenizer: {error}") from None


def _file_hash(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigurationError(f"model: its tokenizer cannot be read from {file}: {error.strerror}") from None


def _fingerprint_of(files: Iterable[Path]) -> str:
    """Return a hash of the files' sizes and of samples of them: all of a large model would take minutes to read."""
    digest = hashlib.sha256()
    for file in files:
        try:
            size = file.stat().st_size
            digest.update(f"{size}\n".encode())
            with file.open("rb") as opened:
                for place in range(SAMPLES):
                    opened.seek(max(0, size - SAMPLE_BYTES) * place // (SAMPLES - 1))
                    digest.update(opened.read(SAMPLE_BYTES))
        except OSError as error:
            raise ConfigurationError(f"model: cannot read {file}: {error.strerror}") from None
    return digest.hexdigest()


def _context_of(folder: Path) -> int | None:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"model: {folder}/config.json cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ConfigurationError(f"model: {folder}/config.json is not a JSON object")
    length = config.get("text_config", config).get("max_position_embeddings")
    return length if isinstance(length, int) else None


def _workers_folder(gguf_file: Path, models: Path) -> Path | None:
    """Return the folder that a worker on this machine has converted the file to, if it has; it is named by its hash."""
    candidates = list(models.glob(f"{gguf_file.stem}-*/{TOKENIZER_FILE}"))
    if not candidates:
        return None
    with gguf_file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    wanted = f"{gguf_file.stem}-{digest[:16]}-"
    return next((found.parent for found in candidates if found.parent.name.startswith(wanted)), None)


def _convert(gguf_file: Path, converted: Path | None, folder: Path) -> None:
    """Make the folder with a GGUF file's tokenizer and the length of its context, from a worker's if there is one."""
    if converted is not None:
        length, tokenizer = _context_of(converted), (converted / TOKENIZER_FILE).read_text("utf-8")
    else:
        length, tokenizer = read_shape(str(gguf_file)).shape.max_model_len, _tokenizer_of(gguf_file)
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".converting-"))
    try:
        (partial / TOKENIZER_FILE).write_text(tokenizer, "utf-8")
        (partial / "config.json").write_text(json.dumps({"max_position_embeddings": length}))
        os.replace(partial, folder)
    except OSError as error:
        if not folder.is_dir():  # else another process was first; its folder is as good
            raise ServiceUnavailable(f"data_dir: cannot write {folder}: {error.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _tokenizer_of(gguf_file: Path) -> str:
    """Return a GGUF file's tokenizer as JSON. Importing what reads it takes seconds."""
    transformers = import_extra("transformers", f"reading the tokenizer of {gguf_file.name}")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf_file.parent), gguf_file=gguf_file.name)
    except Exception as error:  # each format has errors of its own
        raise ConfigurationError(f"model: the tokenizer of {gguf_file} cannot be read: {error}") from None
    text: str = tokenizer.backend_tokenizer.to_str()
    return text


def _from_hub(model: str) -> tuple[Path, str]:
    """Return the folder of a hub model's small files, and its commit."""
    hub = import_extra("huggingface_hub", f"looking up {model}")
    try:
        config = Path(hub.hf_hub_download(model, "config.json"))
        hub.hf_hub_download(model, TOKENIZER_FILE)
    except hub.errors.RepositoryNotFoundError:
        raise ConfigurationError(f"model: the hub has no {model}, or it needs a token") from None
    except hub.errors.EntryNotFoundError as error:
        raise ConfigurationError(f"model: {model} has no config.json or {TOKENIZER_FILE}: {error}") from None
    except OSError as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ServiceUnavailable(f"model: cannot read {model} from the hub: {reason}") from None
    return config.parent, f"{model}@{config.parent.name}"
