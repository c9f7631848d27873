"""Write masters as a checkpoint in the official layout.

In: FP32 masters, a configuration. Out: shards, index, config.json.
Does not know: training, evaluation. Backbone specification 2.2 and 2.3.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from .quantize import pack_fp8_rows, pack_fp8_tiles, pack_mxfp4
from .shape import Shape
from .weights import inventory

PACKERS = {"fp8": pack_fp8_tiles, "fp4": pack_mxfp4, "rows": pack_fp8_rows}
SHARD_BYTES = 12 * 2**20


def official_tensors(masters: dict[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Every stored tensor by its official name."""
    tensors: dict[str, Tensor] = {}
    for key, entry in inventory(shape).items():
        values = masters[key].detach().float().cpu()
        for place, name in entry.names():
            if entry.form in PACKERS:
                weight, scale = PACKERS[entry.form](values[place])
                tensors[name] = weight.contiguous()
                tensors[name.removesuffix("weight") + "scale"] = scale.contiguous()
            else:
                dtype = torch.bfloat16 if entry.form == "bf16" else torch.float32
                tensors[name] = values[place].to(dtype).contiguous()
    return tensors


def _group_of(name: str) -> tuple[int, int]:
    """Order of the release: embedding, layers, head, draft, Engram."""
    part = name.split(".")
    if ".engram." in name:
        return 3, int(part[1])
    if part[0] == "mtp":
        return 2, int(part[1])
    if part[0] == "layers":
        return 0, 1 + int(part[1])
    return (0, 0) if part[0] == "embed" else (1, 0)


def write_checkpoint(
    masters: dict[str, Tensor], shape: Shape, config: dict[str, Any], folder: Path
) -> int:
    """Write shards under 16 MiB with their index and `config.json`; returns the payload bytes."""
    tensors = official_tensors(masters, shape)
    shards: list[list[str]] = [[]]
    filled = 0
    sizes = {name: value.numel() * value.element_size() for name, value in tensors.items()}
    for name in sorted(tensors, key=lambda n: (_group_of(n), n)):
        if filled + sizes[name] > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += sizes[name]
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({name: tensors[name] for name in names}, folder / file,
                  metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    total = sum(sizes.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return total
