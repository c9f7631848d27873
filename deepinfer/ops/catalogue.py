"""The catalogue: every operator that V4.1 needs, and the bytes that operators share.

In: the rows of five families. Out: CATALOGUE, read by the plan, the kit, the docs and the model.
Does not know: who computes anything.
"""

from __future__ import annotations

from deepinfer.ops import attention, exchange, gemm, sampler, tensor
from deepinfer.ops.operator import Catalogue, Kind

_KINDS = (
    Kind("kv", True, "attention.sparse_decode", "window, entry and open-group caches"),
    Kind("index", True, "attention.index_logits", "index key caches"),
    Kind("dense_weights", True, "gemm.dense_mxfp8", "packing of FP8 weights"),
    Kind("expert_weights", True, "gemm.grouped_mxfp4", "packing of the experts' weights"),
    Kind("activations", False, "gemm.dense_mxfp8", "quantized rows and their scales"),
    Kind("expert_rows", False, "gemm.grouped_mxfp4", "order of rows between route and combine"),
)
_ROWS = (
    *attention.OPERATORS,
    *gemm.OPERATORS,
    *exchange.OPERATORS,
    *sampler.OPERATORS,
    *tensor.OPERATORS,
)

CATALOGUE = Catalogue(
    operators={row.name: row for row in _ROWS}, kinds={kind.name: kind for kind in _KINDS}
)
