"""How many bytes the weights of a model take once they are loaded.

In: a Shape. Out: bytes, before a byte is read.
Does not know: devices; whether it fits is the plan's question to the platform's memory.
"""

from deepinfer.model.inventory import TensorSpec, inventory
from deepinfer.model.shape import Shape

# Names that are widened at load, and the bytes per element they then take (specification 2.4).
BF16_BYTES, F32_BYTES = 2, 4
WIDENED = {
    "attn.wo_a.weight": BF16_BYTES,
    "markov_head.head.weight": F32_BYTES,
    "confidence_head.proj.weight": F32_BYTES,
}


def needed_bytes(shape: Shape, *, draft: bool = True, engram: bool = True) -> int:
    """Bytes of all weights that a text model holds, as the release widens them at load."""
    parts = {"backbone"} | ({"draft"} if draft else set()) | ({"engram"} if engram else set())
    return sum(
        loaded_bytes(shape, name, spec)
        for name, spec in inventory(shape).items()
        if spec.part in parts
    )


def loaded_bytes(shape: Shape, name: str, spec: TensorSpec) -> int:
    if name == "head.weight":
        return F32_BYTES * spec.count
    for suffix, width in WIDENED.items():
        if name.endswith(suffix):
            return width * spec.count
    if name.endswith(("compressor.wkv.weight", "compressor.wgate.weight")):
        layer = int(name.split(".")[1])
        return F32_BYTES * spec.count if shape.ratio(layer) > 1 else spec.bytes
    return spec.bytes
