"""Reads a model's shape from its files, without loading its weights: a local folder, a GGUF file or a hub id."""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.plan import ModelShape
from worker.errors import ConfigurationError, ServiceUnavailable
from worker.extras import import_extra

MAX_SAFETENSORS_HEADER_BYTES = 100_000_000  # the format's own limit
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedShape:
    """A model's shape, and what else its files tell."""

    shape: ModelShape
    max_model_len: int | None  # tokens
    parameters_from: str  # what the parameters were counted from, for a person


def read_shape(model: str) -> DescribedShape:
    """Return the shape of a local folder, a `.gguf` file or a hub id.

    Raises ConfigurationError when there is no such model or its files lack a number that is needed, and
    ServiceUnavailable when the hub cannot be reached.
    """
    path = locate_model(model)
    if path is None:
        return _read_hub(model)
    return _read_folder(path) if path.is_dir() else _read_gguf(path)


def locate_model(model: str) -> Path | None:
    """Return the path of a model on this machine, a folder or a GGUF file; None for what can only be a hub id.

    Raises ConfigurationError for anything else. Nothing is looked up on the hub.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigurationError(f"model: the folder {model} has no config.json")
        return path
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ConfigurationError(f"model: {model} is a file, but not a .gguf one")
        return path
    if model.count("/") == 1 and not model.startswith((".", "/", "~")):
        return None
    raise ConfigurationError(f"model: {model} is neither a folder, a .gguf file nor a hub id such as owner/name")


def short_name(model: str) -> str:
    """Return what people call a model: a file's or folder's own name, or the hub id."""
    path = Path(model)
    if not path.exists():
        return model
    return path.stem if path.is_file() else path.resolve().name


def shape_from_config(config: Mapping[str, Any], where: str, num_parameters: int | None = None) -> DescribedShape:
    """Return the shape in a transformers `config.json`; `where` names it in errors.

    Without `num_parameters` they are computed for a Llama-like decoder: gated feed-forward, untied output unless the
    config says otherwise. Raises ConfigurationError for a missing number, and for experts, which need a count.
    """
    text = config.get("text_config", config)
    hidden, heads = _number(text, "hidden_size", where), _number(text, "num_attention_heads", where)
    layers, vocabulary = _number(text, "num_hidden_layers", where), _number(text, "vocab_size", where)
    kv_heads = text.get("num_key_value_heads") or heads
    head_dim = text.get("head_dim") or hidden // heads
    parameters_from = "its safetensors files"
    if num_parameters is None:
        if any(text.get(key) for key in _EXPERT_KEYS):
            raise ConfigurationError(
                f"{where}: has experts, whose parameters cannot be told from it; give --parameters"
            )
        attention = hidden * head_dim * 2 * (heads + kv_heads)
        per_layer = attention + 3 * hidden * _number(text, "intermediate_size", where) + 2 * hidden
        embeddings = vocabulary * hidden * (1 if text.get("tie_word_embeddings") else 2)
        num_parameters = layers * per_layer + embeddings + hidden
        parameters_from = "the sizes in its config.json"
    shape = _make_shape(
        where,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_size=hidden,
        vocab_size=vocabulary,
        num_parameters=num_parameters,
    )
    return DescribedShape(
        shape=shape, max_model_len=text.get("max_position_embeddings"), parameters_from=parameters_from
    )


def _read_folder(folder: Path) -> DescribedShape:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
        files = sorted(folder.glob("*.safetensors"))
        parameters = sum(_count_safetensors(file) for file in files) if files else None
    except OSError as error:
        raise ConfigurationError(f"model: cannot read {error.filename or path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"model: {folder}: {error}") from None
    if not isinstance(config, dict):
        raise ConfigurationError(f"model: {path} is not a JSON object")
    return shape_from_config(config, str(path), parameters)


def _count_safetensors(path: Path) -> int:
    """Return the number of parameters in a file, from its header alone. Raises ValueError when it is malformed."""
    with path.open("rb") as file:
        prefix = file.read(8)
        size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < size <= MAX_SAFETENSORS_HEADER_BYTES:
            raise ValueError(f"{path.name} is not a safetensors file")
        header = json.loads(file.read(size))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _read_gguf(path: Path) -> DescribedShape:
    gguf = import_extra("gguf", f"reading {path.name}")
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ConfigurationError(f"model: {path} cannot be read as GGUF: {error}") from None
    fields = {name: field.contents() for name, field in reader.fields.items() if name != "tokenizer.ggml.merges"}
    prefix = fields.get("general.architecture")
    values = {name.removeprefix(f"{prefix}."): value for name, value in fields.items()}
    hidden, heads = _number(values, "embedding_length", str(path)), _number(values, "attention.head_count", str(path))
    shape = _make_shape(
        str(path),
        num_layers=_number(values, "block_count", str(path)),
        num_heads=heads,
        num_kv_heads=values.get("attention.head_count_kv", heads),
        head_dim=values.get("attention.key_length", hidden // heads),
        hidden_size=hidden,
        vocab_size=len(values.get("tokenizer.ggml.tokens", ())),
        num_parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
    )
    return DescribedShape(shape=shape, max_model_len=values.get("context_length"), parameters_from="its tensors")


def _read_hub(model: str) -> DescribedShape:
    hub = import_extra("huggingface_hub", f"looking up {model}")
    try:
        path = Path(hub.hf_hub_download(model, "config.json"))
        counts = hub.get_safetensors_metadata(model).parameter_count
    except hub.errors.RepositoryNotFoundError:
        raise ConfigurationError(f"model: the hub has no {model}, or it needs a token") from None
    except (OSError, hub.errors.NotASafetensorsRepoError, hub.errors.EntryNotFoundError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ServiceUnavailable(f"model: cannot read {model} from the hub: {reason}") from None
    return shape_from_config(json.loads(path.read_text("utf-8")), f"{model}/config.json", sum(counts.values()))


def _number(values: Mapping[str, Any], key: str, where: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{where}: {key} is {value!r}; a number of at least 1 is needed")
    return value


def _make_shape(where: str, **numbers: int) -> ModelShape:
    try:
        return ModelShape(**numbers)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{where}: {error}") from None
