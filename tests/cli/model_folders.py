"""Model folders as far as the commands read them: a config and the headers of weights."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
CONFIG = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def write_folder(folder: Path, config: Mapping[str, object], shapes: dict[str, list[int]] | None = None) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if shapes is not None:
        tensors = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
        header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
