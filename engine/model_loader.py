"""Loading a model: a hub id, a local safetensors folder or a GGUF file. Never pickle, never a model's own code."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from engine.attention_layers import UnsupportedModel, refuse_other_layers
from engine.checkpoint_files import UnreadableCheckpoint, read_config
from engine.context_length import needs_long_frequencies, use_long_frequencies
from engine.engine import ModelIdentity
from engine.fused import fuse
from engine.gguf_header import gguf_type
from engine.gguf_reading import headers_read_once
from engine.layer_replacing import fuse_layers
from engine.linears import NativeLinear, Numerics, Weights
from engine.made_once import made_once
from engine.memory import use_huge_pages
from engine.model_folder import UnsafeFolder, check_folder
from engine.paged_model import PagedModel
from engine.quantisation import UnsupportedQuantisation, describe_weights
from engine.quantisation_config import read_quantisation
from engine.quantised_checkpoints import dequantised_folder, refuse_lost_biases, refuse_remnants
from engine.self_test import eager_logits, self_test
from engine.self_test_record import SelfTestRecord, self_test_record
from kernels.native.building import COMPILE_SECONDS, NativeBuild
from kernels.native.library import NativeKernels

NATIVE_SECONDS = 10.0  # that loading waits for a compiler at most; the next start finds what it made
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PLAIN = Numerics()


class ModelNotFound(Exception):
    """A model source that is not there or cannot be read."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that passed its self-test, and where its tokenizer is."""

    model: PagedModel
    identity: ModelIdentity
    folder: str  # hub id or local folder that transformers' AutoTokenizer takes
    weights: str | None = None  # how they are stored and held, for a person, where that is not as usual


@dataclass(frozen=True, slots=True)
class Source:
    """A model in a form that transformers reads."""

    weights: str  # hub id or local folder
    tokenizer: str  # the same, of its tokenizer
    stored: str | None = None  # how the weights were quantised, for a person


def choose_device(name: str) -> torch.device:
    """Return the device for "auto", "cpu" or "cuda"."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype for "auto" or a name in DTYPES. Auto is bfloat16 where the device multiplies it natively."""
    if name != "auto":
        return DTYPES[name]
    native = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32


def load_model(
    source: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    cache_dir: Path,
    native_kernels: bool = True,
    numerics: Numerics = PLAIN,
    max_model_len: int | None = None,
) -> LoadedModel:
    """Load, check and self-test a model; a test that it has passed as it is, here, is not repeated.

    `max_model_len` tells how long sequences are to be, where they may be longer than LongRoPE's original context.
    Quantised weights are dequantised once, into a folder under `cache_dir`, those of a GGUF file and those of a
    checkpoint: reading them takes far longer than reading safetensors. Kernels in C are compiled into `cache_dir`
    meanwhile, where the device and the type have use for them. Raises ModelNotFound, or UnsupportedModel with the
    reason.
    """
    if source.startswith(("/", "./", "../", "~")) and not Path(source).exists():
        raise ModelNotFound(f"model {source!r} does not exist")
    has_use = native_kernels and device.type == "cpu" and dtype is torch.bfloat16
    build = NativeBuild(cache_dir) if has_use else None
    try:
        plain = _plain_source(source, dtype, cache_dir)
    except (UnsafeFolder, UnsupportedQuantisation) as error:
        raise UnsupportedModel(str(error)) from error
    except (UnreadableCheckpoint, OSError) as error:
        raise ModelNotFound(f"model {source!r} cannot be loaded: {_first_line(error)}") from error
    model = _read_weights(source, plain.weights, dtype=dtype, use_safetensors=True)
    # Without them other operators add up, in another order: the next start would give other bits.
    patience = COMPILE_SECONDS if numerics.batch_invariant else NATIVE_SECONDS
    native = None if build is None else build.wait(patience)
    is_long = needs_long_frequencies(model.config.get_text_config(), max_model_len)
    if is_long:
        use_long_frequencies(model)
    facts: dict[str, Any] = {"dtype": dtype, "device": device, "numerics": numerics, "native": native}
    record = self_test_record(cache_dir, plain.weights, **facts, is_long=is_long)
    model = model.to(device)  # type: ignore[arg-type]  # its decorator hides nn.Module.to
    paged = _paged(model, native, numerics, record, is_long=is_long)
    use_huge_pages(linear.matrix.tiles for linear in model.modules() if isinstance(linear, NativeLinear))
    identity = ModelIdentity(source, paged.vocab_size, _stop_token_ids(model, paged.vocab_size))
    is_int8 = numerics.weights is Weights.INT8
    held = describe_weights(plain.stored, str(dtype).removeprefix("torch."), is_int8=is_int8)
    return LoadedModel(paged, identity, plain.tokenizer, held)


def _plain_source(source: str, dtype: torch.dtype, cache_dir: Path) -> Source:
    """Return what transformers is to read: weights that are quantised are dequantised first, if not yet."""
    if source.endswith(".gguf"):
        folder = str(_convert_gguf(Path(source), dtype, cache_dir))
        name = gguf_type(Path(source))
        return Source(folder, folder, "GGUF" if name is None else f"GGUF {name}")
    if Path(source).is_dir():
        check_folder(Path(source))
    _refuse_foreign_code(source)
    quantisation = read_quantisation(read_config(source))
    if quantisation is None:
        return Source(source, source)
    folder = str(dequantised_folder(source, quantisation, dtype, cache_dir))
    return Source(folder, source, quantisation.name)


def _read_weights(source: str, folder: str, **options: Any) -> PreTrainedModel:
    """Return transformers' model. One that lacks weights is refused: transformers makes up random values for them."""
    try:
        config = None if "gguf_file" in options else AutoConfig.from_pretrained(folder, trust_remote_code=False)
        loaded = reader_of(config).from_pretrained(folder, trust_remote_code=False, output_loading_info=True, **options)
    except Exception as error:  # each reader has errors of its own for a file that is cut short
        raise ModelNotFound(f"model {source!r} cannot be loaded: {_first_line(error)}") from error
    model, report = cast("tuple[PreTrainedModel, Mapping[str, Collection[str]]]", loaded)
    if report["missing_keys"]:
        raise ModelNotFound(f"model {source!r} cannot be loaded: it lacks {', '.join(sorted(report['missing_keys']))}")
    try:
        refuse_remnants(report["unexpected_keys"])
        if folder != source and not source.endswith(".gguf"):
            refuse_lost_biases(Path(folder), report["unexpected_keys"])
    except UnsupportedQuantisation as error:
        raise UnsupportedModel(str(error)) from error
    return model


def reader_of(config: PreTrainedConfig | None) -> Any:
    """Return which of transformers' classes makes models of a configuration. Of one that sees images too, and is no
    causal model of its own (Mistral 3, with Ministral 3 in it), text alone is served."""
    sees_too = type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if sees_too else AutoModelForCausalLM


def _paged(
    model: PreTrainedModel,
    native: NativeKernels | None,
    numerics: Numerics,
    record: SelfTestRecord | None,
    *,
    is_long: bool,
) -> PagedModel:
    """Return the model over our attention and fused parts, self-tested now or before. Raises UnsupportedModel."""
    try:
        refuse_other_layers(model)
        expected = None if record is not None and record.has_passed() else eager_logits(model)
        paged = PagedModel(model, native, batch_invariant=numerics.batch_invariant, is_long=is_long)
        num_bytes = _weight_bytes(model)
        fuse(model, numerics, native)
        if _weight_bytes(model) <= num_bytes / 2:
            _leave_file(model)
        fuse_layers(paged)
        if expected is not None:
            self_test(paged, expected, numerics)
            if record is not None:
                record.keep()
    except (UnsupportedModel, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise UnsupportedModel(f"its definition does not run on paged attention: {reason}") from error
    return paged


def _weight_bytes(model: PreTrainedModel) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def _leave_file(model: PreTrainedModel) -> None:
    """Copy the weights that are still those of the file: as long as one is, all of it is mapped, beside what was made
    of the others."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _refuse_foreign_code(folder: str) -> None:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the configuration classes check values in their own ways
        raise ModelNotFound(f"model {folder!r} cannot be loaded: {_first_line(error)}") from error
    if getattr(config, "auto_map", None):
        raise UnsupportedModel("its config has auto_map, which would run code from the model's repository")


def _stop_token_ids(model: PreTrainedModel, vocab_size: int) -> frozenset[int]:
    """Return what ends an output. Ids without a logit are left out: the model never chooses them, and `min_tokens`
    could not forbid them."""
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = model.config.get_text_config().eos_token_id
    named = [] if ids is None else [ids] if isinstance(ids, int) else ids
    return frozenset(token_id for token_id in named if 0 <= token_id < vocab_size)


def _convert_gguf(path: Path, dtype: torch.dtype, cache_dir: Path) -> Path:
    """Return the folder with the file's weights in `dtype`, its config and its tokenizer, made once."""
    try:
        digest = _file_digest(path)
    except OSError as error:
        raise ModelNotFound(f"model {str(path)!r} cannot be read: {error.strerror}") from error
    folder = cache_dir / f"{path.stem}-{digest[:16]}-{str(dtype).removeprefix('torch.')}"
    return made_once(folder, lambda partial: _write_converted(path, dtype, partial))


def _write_converted(path: Path, dtype: torch.dtype, folder: Path) -> None:
    parent, name = str(path.parent), path.name
    dequantised = GgufConfig(dequantize=True)
    with headers_read_once():
        model = _read_weights(str(path), parent, gguf_file=name, dtype=dtype, quantization_config=dequantised)
        try:
            tokenizer = AutoTokenizer.from_pretrained(parent, gguf_file=name)
        except Exception as error:
            raise ModelNotFound(f"model {str(path)!r} cannot be loaded: {_first_line(error)}") from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "source.json").write_text(json.dumps({"gguf": name, "sha256": _file_digest(path)}))


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
