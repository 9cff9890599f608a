"""`pagemill plan`: what fits in a device's memory."""

import dataclasses
import sys
from collections import Counter

import click

from engine.kv_layout import AttentionLayer
from engine.plan import Deployment, MemoryPlan, ModelShape, like_layers, plan_memory
from worker.cli.options import Size, json_option
from worker.cli.output import message, print_json
from worker.cli.tables import print_fields, print_table
from worker.errors import ExitCode
from worker.model_shape import DescribedShape, read_shape
from worker.readable import format_bytes
from worker.settings import load_settings

KV_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}
KV_SCALE_BYTES = {"int8": 2, "fp8": 2}  # as the engine stores them; a test compares
DEFAULT_KV_DTYPE = "bfloat16"
WEIGHT_BITS = {"float32": 32}  # by the setting dtype
DEFAULT_WEIGHT_BITS = LEAST_HELD_BITS = 16
INT8_BITS = 8
DEFAULT_CONTEXT = 4096  # tokens, where neither a flag nor the model's files tell
DEFAULT_VOCAB_SIZE = 128_000  # it only sizes the logits of a step
SIZES_OF_LAYERS = ("num_heads", "num_kv_heads", "head_dim")
REQUIRED_SIZES = {  # flag -> field, without a model
    "layers": "num_layers",
    "kv-heads": "num_kv_heads",
    "head-dim": "head_dim",
    "hidden-size": "hidden_size",
    "parameters": "num_parameters",
}


@click.command()
@click.argument("model", required=False)
@click.option("--memory", type=Size(), required=True, help="The device's memory, for example 24GiB.")
@click.option("--context", type=click.IntRange(1), help="Tokens of the longest sequence. Default: the model's limit.")
@click.option(
    "--weight-bits",
    type=click.Choice(["32", "16", "8", "4"]),
    help="Bits a parameter, whatever its files have. Default: those of the setting dtype; 16 where that is auto.",
)
@click.option(
    "--weights",
    type=click.Choice(["dtype", "int8"]),
    help="Whether linear layers are held in int8. Default: the setting weights.",
)
@click.option(
    "--draft-model", help="A model that drafts, beside it. Default: the setting draft_model, if MODEL is given."
)
@click.option(
    "--kv-dtype",
    type=click.Choice(list(KV_ELEMENT_BYTES)),
    help=f"Default: the setting kv_dtype; {DEFAULT_KV_DTYPE} where that is auto.",
)
@click.option("--block-size", type=click.IntRange(1), help="Tokens in a block. Default: the setting block_size.")
@click.option("--token-budget", type=click.IntRange(1), default=2048, show_default=True, help="Tokens in a step.")
@click.option("--max-num-seqs", type=click.IntRange(1), default=128, show_default=True, help="Requests in a step.")
@click.option("--layers", "num_layers", type=click.IntRange(1), help="Overrides or replaces the model's files.")
@click.option("--heads", "num_heads", type=click.IntRange(1), help="Query heads. Default: as many as KV heads.")
@click.option("--kv-heads", "num_kv_heads", type=click.IntRange(1))
@click.option("--head-dim", "head_dim", type=click.IntRange(1))
@click.option("--hidden-size", "hidden_size", type=click.IntRange(1))
@click.option("--vocab-size", "vocab_size", type=click.IntRange(1), help="Default without a model: 128,000.")
@click.option("--parameters", "num_parameters", type=click.FloatRange(1), help="For example 70e9.")
@json_option
def plan(
    model: str | None,
    memory: int,
    context: int | None,
    weight_bits: str | None,
    weights: str | None,
    draft_model: str | None,
    kv_dtype: str | None,
    block_size: int | None,
    token_budget: int,
    max_num_seqs: int,
    as_json: bool,
    **sizes: float | None,
) -> None:
    """Compute KV bytes a token, blocks, and sequences that fit, weights included.

    MODEL is a folder with a config.json, a GGUF file or a hub id; without one, give --layers, --kv-heads, --head-dim,
    --hidden-size and --parameters. Weights that come quantised are counted as a worker holds them: dequantised.
    Exit code 1 means that not even one full sequence fits.

    \b
    Examples:
      pagemill plan models/SmolLM2-135M-Instruct.Q4_1.gguf --memory 2GiB --weights int8 --kv-dtype int8
      pagemill plan --layers 80 --heads 64 --kv-heads 8 --head-dim 128 --hidden-size 8192 \\
          --parameters 70e9 --weight-bits 4 --memory 24GiB
    """
    given = {name: int(value) for name, value in sizes.items() if value is not None}
    described = read_shape(model) if model else None
    settings = load_settings()
    kv_dtype = kv_dtype or (DEFAULT_KV_DTYPE if settings.kv_dtype == "auto" else settings.kv_dtype)
    shape = _shape(described, given)
    draft_model = draft_model or (settings.draft_model if model else None)
    draft = read_shape(draft_model).shape if draft_model else None
    bits = int(weight_bits) if weight_bits else WEIGHT_BITS.get(settings.dtype, DEFAULT_WEIGHT_BITS)
    deployment = Deployment(
        memory_bytes=memory,
        weight_bits=bits,
        linear_bits=INT8_BITS if (weights or settings.weights) == "int8" else None,
        kv_element_bytes=KV_ELEMENT_BYTES[kv_dtype],
        kv_scale_bytes=KV_SCALE_BYTES.get(kv_dtype, 0),
        context=context or shape.max_model_len or DEFAULT_CONTEXT,
        block_size=block_size or settings.block_size,
        token_budget=token_budget,
        max_num_seqs=max_num_seqs,
    )
    result = plan_memory(shape, deployment, draft)
    if as_json:
        stored = described.stored if described else None
        figures = {"plan": result, "weights_fit": result.weights_fit, "stored": stored}
        print_json({"shape": shape, "draft_shape": draft, "deployment": deployment, **figures})
    else:
        _print_plan(shape, described, deployment, result)
    _print_verdict(deployment, result)


def _print_verdict(deployment: Deployment, result: MemoryPlan) -> None:
    """Say what does not fit, and exit if something does not."""
    if deployment.weight_bits < LEAST_HELD_BITS:
        message(
            f"a worker does not hold weights in {deployment.weight_bits} bits: it dequantises them to 16 or 32 when it "
            "loads them, and --weights int8 holds those of linear layers in 8"
        )
    if not result.weights_fit:
        message(
            f"does not fit: the weights alone take {_both(result.weights_bytes)} {_bits(deployment)} a parameter, "
            f"the memory has {_both(deployment.memory_bytes)}"
        )
    elif result.fits[0].paged == 0:
        message(f"does not fit: no memory is left for one sequence of {deployment.context:,} tokens")
    if result.fits[0].paged == 0:
        sys.exit(ExitCode.JOBS_FAILED)


def _shape(described: DescribedShape | None, given: dict[str, int]) -> ModelShape:
    """Return the model's shape with the flags' numbers over it, or one from the flags alone."""
    of_layers = {name: size for name, size in given.items() if name in SIZES_OF_LAYERS}
    rest = {name: size for name, size in given.items() if name not in {*SIZES_OF_LAYERS, "num_layers"}}
    try:
        if described is not None:
            split = None if "num_parameters" in given else described.shape.split
            layers = _changed(described.shape.layers, given.get("num_layers"), of_layers)
            return dataclasses.replace(described.shape, split=split, layers=layers, **rest)
        missing = [f"--{flag}" for flag, name in REQUIRED_SIZES.items() if name not in given]
        if missing:
            raise click.UsageError(f"without MODEL these are needed too: {', '.join(missing)}")
        of_layers = {"num_heads": given["num_kv_heads"], **of_layers}
        layers = like_layers(given["num_layers"], **of_layers)
        return ModelShape(
            layers=layers,
            hidden_size=rest["hidden_size"],
            vocab_size=rest.get("vocab_size", DEFAULT_VOCAB_SIZE),
            num_parameters=rest["num_parameters"],
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _changed(
    layers: tuple[AttentionLayer, ...], num_layers: int | None, of_layers: dict[str, int]
) -> tuple[AttentionLayer, ...]:
    """Return a model's layers with other numbers; as many like its widest, and seeing everything, where there are to be
    `num_layers`."""
    if num_layers is not None:
        widest = max(layers, key=lambda layer: layer.num_kv_heads * layer.head_dim)
        layers = like_layers(num_layers, widest.num_heads, widest.num_kv_heads, widest.head_dim)
    return tuple(dataclasses.replace(layer, **of_layers) for layer in layers)


def _print_plan(shape: ModelShape, described: DescribedShape | None, deployment: Deployment, plan: MemoryPlan) -> None:
    counted = f" (counted from {described.parameters_from})" if described else ""
    gqa = (
        f" (without grouped-query attention: {plan.kv_bytes_per_token_without_gqa:,})"
        if plan.kv_bytes_per_token_without_gqa > plan.kv_bytes_per_token
        else ""
    )
    draft = (
        {
            "of those, the draft model's": format_bytes(plan.draft_weights_bytes),
            "the draft model's KV bytes a token": f"{plan.draft_kv_bytes_per_token:,}",
        }
        if plan.draft_weights_bytes
        else {}
    )
    print_fields(
        "Memory",
        {
            "parameters": f"{shape.num_parameters:,}{counted}",
            **_layers(shape, plan),
            "memory": format_bytes(plan.memory_bytes),
            **(
                {"stored as": f"{described.stored}, dequantised when it is loaded"}
                if described and described.stored
                else {}
            ),
            "weights": f"{format_bytes(plan.weights_bytes)} {_bits(deployment)}",
            **draft,
            "one step's activations": f"{format_bytes(plan.activation_bytes)} (estimate)",
            "left to the KV cache": format_bytes(plan.kv_cache_bytes),
            "KV bytes a token": f"{plan.kv_bytes_per_token:,}{gqa}",
            f"KV bytes a block of {deployment.block_size}": plan.block_bytes,
            "blocks": plan.num_blocks,
            "tokens in blocks": plan.capacity_tokens,
        },
    )
    print_table(
        "Sequences that fit at once",
        ("tokens each", "KV memory each", "paged", f"reserved to {deployment.context:,}"),
        [(fit.tokens, format_bytes(fit.kv_bytes), fit.paged, fit.reserved) for fit in plan.fits],
    )


def _layers(shape: ModelShape, plan: MemoryPlan) -> dict[str, str]:
    """Return what there is to say of the layers: by their kinds where they differ, and what they share."""
    kinds = Counter((layer.num_heads, layer.num_kv_heads, layer.head_dim) for layer in shape.layers)
    rows = {
        "layers, query heads, KV heads, head dimension": "; ".join(
            ", ".join(map(str, (number, *kind))) for kind, number in kinds.items()
        )
    }
    windows = [layer.window for layer in shape.layers if layer.window is not None]
    if windows:
        tables = f"; {plan.num_groups} groups of layers have blocks of their own" if plan.num_groups > 1 else ""
        sizes = ", ".join(map(str, sorted(set(windows))))
        rows["layers with a window"] = f"{len(windows)}, of {sizes} tokens{tables}"
    sharing = sum(layer.source != index for index, layer in enumerate(shape.layers))
    if sharing:
        rows["layers without K and V of their own"] = str(sharing)
    return rows


def _bits(deployment: Deployment) -> str:
    bits = f"at {deployment.weight_bits} bits"
    return bits if deployment.linear_bits is None else f"at {deployment.linear_bits} bits in linear layers, else {bits}"


def _both(size: int) -> str:
    """Return a size in GB, as vendors count, and in GiB, as memory does."""
    return f"{size / 1e9:.1f} GB ({size / 2**30:.1f} GiB)"
