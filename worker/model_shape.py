"""Reads a model's shape from its files, without loading its weights: a local folder, a GGUF file or a hub id."""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.gguf_header import gguf_type
from engine.kv_layout import AttentionLayer
from engine.plan import ModelShape, ParameterSplit
from engine.quantisation import UnsupportedQuantisation, dequantised_shapes
from engine.quantisation_config import read_quantisation
from worker.attention_shape import config_of_gguf, context_of, field, layers_of_config
from worker.errors import ConfigurationError, ServiceUnavailable
from worker.extras import import_extra

MAX_SAFETENSORS_HEADER_BYTES = 100_000_000  # the format's own limit
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
_EMBEDDING_MARKS = ("embed", ".wte.", ".wpe.", "token_embd", "position_embd")  # in the names of weights
_EXPERT_MARKS = (".experts.", "_exps.")
_HEADS = frozenset({"lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight", "output.weight"})

Shapes = Mapping[str, tuple[int, ...]]  # of a model's weights, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedShape:
    """A model's shape, and what else its files tell."""

    shape: ModelShape
    parameters_from: str  # what the parameters were counted from, for a person
    stored: str | None = None  # how the weights are quantised in its files, for a person


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


def stored_weights(model: str) -> str | None:
    """Return how the weights of a model on this machine are quantised, for a person; None where they are not, or where
    it is not here.

    Raises ConfigurationError for a way that the engine would refuse.
    """
    path = locate_model(model)
    if path is None:
        return None
    return _quantised(_read_config(path), None, str(path))[0] if path.is_dir() else _gguf_name(path)


def shape_from_config(config: Mapping[str, Any], where: str, shapes: Shapes | None = None) -> DescribedShape:
    """Return the shape in a transformers `config.json`; `where` names it in errors. `shapes` are those of its tensors.

    Without `shapes` the parameters are computed for a Llama-like decoder: gated feed-forward, untied output unless the
    config says otherwise. Raises ConfigurationError for a missing number, for experts, which need tensors to count, and
    for a quantisation that the engine would refuse.
    """
    text = config.get("text_config", config)
    hidden, vocabulary = _number(text, "hidden_size", where), _number(text, "vocab_size", where)
    layers = _layers(text, where)
    stored, plain_shapes = _quantised(config, shapes, where)
    if plain_shapes is not None:
        num_parameters, split = _count(plain_shapes)
    else:
        if any(text.get(key) for key in _EXPERT_KEYS):
            raise ConfigurationError(
                f"{where}: has experts, whose parameters cannot be told from it; give --parameters"
            )
        attention = sum(2 * hidden * layer.head_dim * (layer.num_heads + layer.num_kv_heads) for layer in layers)
        matrices = attention + len(layers) * 3 * hidden * _number(text, "intermediate_size", where)
        norms, embedding = (2 * len(layers) + 1) * hidden, vocabulary * hidden
        num_parameters = matrices + norms + embedding * (1 if text.get("tie_word_embeddings") else 2)
        split = ParameterSplit(matrices + embedding, norms + embedding)
    shape = _make_shape(
        where,
        layers=layers,
        hidden_size=hidden,
        vocab_size=vocabulary,
        num_parameters=num_parameters,
        split=split,
        max_model_len=context_of(text),
    )
    counted = "the sizes in its config.json" if shapes is None else "its safetensors files"
    return DescribedShape(shape=shape, parameters_from=counted, stored=stored)


def _layers(text: Mapping[str, Any], where: str) -> tuple[AttentionLayer, ...]:
    numbers = [_number(text, name, where) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")]
    try:
        return layers_of_config(text, *numbers)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: its layers cannot be told: {error}") from None


def _quantised(config: Mapping[str, Any], shapes: Shapes | None, where: str) -> tuple[str | None, Shapes | None]:
    """Return how the weights are quantised, and the shapes as they are dequantised. Raises ConfigurationError."""
    try:
        quantisation = read_quantisation(config)
        if quantisation is None:
            return None, shapes
        return quantisation.name, None if shapes is None else dequantised_shapes(quantisation, shapes)
    except UnsupportedQuantisation as error:
        raise ConfigurationError(f"model: {where}: {error}") from None


def _count(shapes: Shapes) -> tuple[int, ParameterSplit]:
    """Return how many parameters there are, and which of them linear layers hold: an LM head that is not among the
    weights shares the embedding's."""
    total = linear = shared = 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        total += size
        is_embedding = any(mark in name for mark in _EMBEDDING_MARKS)
        if len(shape) == 2 and name.endswith(".weight") and not any(mark in name for mark in _EXPERT_MARKS):
            linear += 0 if is_embedding else size
            shared = max(shared, size) if is_embedding else shared
    if _HEADS.isdisjoint(shapes):
        return total, ParameterSplit(linear + shared, total - linear)
    return total, ParameterSplit(linear, total - linear)


def _read_config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"model: cannot read {error.filename or path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"model: {folder}: {error}") from None
    if not isinstance(config, dict):
        raise ConfigurationError(f"model: {path} is not a JSON object")
    return config


def _read_folder(folder: Path) -> DescribedShape:
    config = _read_config(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        for file in sorted(folder.glob("*.safetensors")):
            shapes |= _safetensors_shapes(file)
    except OSError as error:
        raise ConfigurationError(f"model: cannot read {error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"model: {folder}: {error}") from None
    return shape_from_config(config, str(folder / "config.json"), shapes or None)


def _safetensors_shapes(path: Path) -> Shapes:
    """Return the shapes of a file's tensors, from its header alone. Raises ValueError when it is malformed."""
    with path.open("rb") as file:
        prefix = file.read(8)
        size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < size <= MAX_SAFETENSORS_HEADER_BYTES:
            raise ValueError(f"{path.name} is not a safetensors file")
        header = json.loads(file.read(size))
    return {name: tuple(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"}


def _gguf_name(path: Path) -> str:
    try:
        name = gguf_type(path)
    except OSError as error:
        raise ConfigurationError(f"model: cannot read {path}: {error.strerror}") from None
    return "GGUF" if name is None else f"GGUF {name}"


def _read_gguf(path: Path) -> DescribedShape:
    gguf = import_extra("gguf", f"reading {path.name}")
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ConfigurationError(f"model: {path} cannot be read as GGUF: {error}") from None
    fields = {name: field.contents() for name, field in reader.fields.items() if name != "tokenizer.ggml.merges"}
    config, where = config_of_gguf(fields), str(path)
    num_parameters, split = _count({tensor.name: tuple(map(int, tensor.shape)) for tensor in reader.tensors})
    shape = _make_shape(
        where,
        layers=_layers(config, where),
        hidden_size=_number(config, "hidden_size", where),
        vocab_size=len(fields.get("tokenizer.ggml.tokens", ())),
        num_parameters=num_parameters,
        split=split,
        max_model_len=context_of(config),
    )
    return DescribedShape(shape=shape, parameters_from="its tensors", stored=_gguf_name(path))


def _read_hub(model: str) -> DescribedShape:
    hub = import_extra("huggingface_hub", f"looking up {model}")
    try:
        path = Path(hub.hf_hub_download(model, "config.json"))
        files = hub.get_safetensors_metadata(model).files_metadata.values()
    except hub.errors.RepositoryNotFoundError:
        raise ConfigurationError(f"model: the hub has no {model}, or it needs a token") from None
    except (OSError, hub.errors.NotASafetensorsRepoError, hub.errors.EntryNotFoundError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ServiceUnavailable(f"model: cannot read {model} from the hub: {reason}") from None
    shapes = {name: tuple(tensor.shape) for file in files for name, tensor in file.tensors.items()}
    return shape_from_config(json.loads(path.read_text("utf-8")), f"{model}/config.json", shapes)


def _number(values: Mapping[str, Any], key: str, where: str) -> int:
    value = field(values, key)
    if not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{where}: {key} is {value!r}; a number of at least 1 is needed")
    return value


def _make_shape(where: str, **fields: Any) -> ModelShape:
    try:
        return ModelShape(**fields)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{where}: {error}") from None
