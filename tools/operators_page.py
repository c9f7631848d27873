"""Writes docs/operators.md from the catalogue, so that the page cannot differ from the code.

In: the catalogue, the dims of a model. Out: one Markdown page, compared by a test.
Does not know: who computes an operator.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from deepinfer.engine.blocks import Geometry
from deepinfer.engine.facts import model_facts
from deepinfer.model.shape import Shape
from deepinfer.ops.catalogue import CATALOGUE
from deepinfer.ops.operator import Operator
from deepinfer.plugin.specs import FAMILY_HOOKS

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "docs" / "operators.md"

FAMILIES = {
    "attention": "Caches, compression, index scores, selection, and attention itself.",
    "gemm": "Matrix products in the formats of the checkpoint.",
    "all_to_all": "Rows between ranks; in the plan only if there is more than one rank.",
    "sampler": "From logits to tokens.",
    "tensor": "Norms, rotations, quantizers, routing, hyper-connections, the n-gram memory.",
}

DIMS = {
    "hidden": "width of a residual stream",
    "vocabulary": "rows of the embedding and of the head",
    "heads": "query heads",
    "head_dim": "channels of a query head and of a key, which is also the value",
    "rope_dim": "channels that are rotated, the last ones of a head",
    "o_groups": "groups of heads in the output projection",
    "o_rank": "width of one group behind its first output product",
    "copies": "residual streams of the hyper-connections",
    "sinkhorn_steps": "steps that make a mixing matrix doubly stochastic",
    "window": "tokens that a row sees directly, itself included",
    "window_rows": "cache rows of one sequence's window ring, at least `window`",
    "block_tokens": "tokens that share one block of the entry and index caches",
    "index_heads": "heads of the indexer",
    "index_dim": "channels of an index key",
    "index_topk": "compressed entries that a row selects",
    "candidate_blocks": "blocks of entries that the candidate layer keeps",
    "candidate_block_size": "entries in a candidate block",
    "experts": "routed experts of a layer",
    "experts_per_token": "experts that a token visits",
    "expert_hidden": "inner width of an expert",
    "ngram": "tokens in the longest n-gram that is hashed",
    "engram_columns": "table rows that one token gathers, over all n-gram lengths and heads",
    "engram_dim": "channels of one table row",
    "norm_widths": "every width at which the model norms",
    "linear_shapes": "every (n, k) of a dense product of the model",
}

FEATURES = {
    "compressed": "some layers read compressed entries",
    "ratio1": "some layers keep an entry for every token",
    "ratio2": "some layers pool two tokens into an entry",
    "engram": "the model has the n-gram memory",
    "candidates": "a layer chooses candidate blocks for the layers behind it",
    "draft": "draft stages are on",
    "ranks": "more than one rank takes part",
}

HEAD = """\
# Operators

Written by `tools/operators_page.py` from the catalogue (`deepinfer/ops/catalogue.py`); do not edit,
run `make docs`. One row of the catalogue is one contract: a kernel's callable has exactly the
parameters shown, and whoever serves an operator keeps what its text says. The numbers in
"Source" are sections of the model's specification.

*Tolerance* is how far a kernel may be from the reference, measured by the norm of the difference,
or in units in the last place. *Edges* are inputs that the generator makes on request, beside plain
random ones. *Layouts* are the kinds of shared bytes that the operator touches. *Needs* is the
feature of a model without which the operator is not in the plan.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, *_kinds(), *_dims(), *_features()]
    for family, about in FAMILIES.items():
        rows = [op for op in CATALOGUE.operators.values() if op.family == family]
        parts += _family(family, about, rows)
    return "\n".join(parts).rstrip() + "\n"


def _kinds() -> Iterator[str]:
    yield "## Kinds of shared bytes\n"
    yield "A kept kind has one layout for the whole run, a passing kind one for each token range."
    yield "The kernels of the anchor are asked first; the others follow or are passed over.\n"
    yield "| kind | what it is | | anchor |\n| --- | --- | --- | --- |"
    for kind in CATALOGUE.kinds.values():
        life = "kept" if kind.kept else "passing"
        yield f"| `{kind.name}` | {kind.doc} | {life} | `{kind.anchor}` |"
    yield ""


def _dims() -> Iterator[str]:
    shape = Shape.load(ROOT / "checkpoints" / "tiny")
    known = model_facts(shape, "tiny", Geometry(16, 128, 1, 2)).dims
    asked = {dim for op in CATALOGUE.operators.values() for dim in op.dims}
    _same("dims of a model", set(known), set(DIMS))
    if unknown := asked - set(DIMS):
        raise SystemExit(f"operators ask for dims that no model states: {', '.join(unknown)}")
    yield "## Dims\n"
    yield "What `problem.dims` and `model.dims` hold; each family below says who asks for which.\n"
    yield "| dim | meaning |\n| --- | --- |"
    yield from (f"| `{dim}` | {meaning} |" for dim, meaning in DIMS.items())
    yield ""


def _features() -> Iterator[str]:
    needed = {op.needs for op in CATALOGUE.operators.values() if op.needs}
    if unknown := needed - set(FEATURES):
        raise SystemExit(f"operators need features without a meaning: {', '.join(unknown)}")
    yield "## Features\n"
    yield "| feature | meaning |\n| --- | --- |"
    yield from (f"| `{feature}` | {meaning} |" for feature, meaning in FEATURES.items())
    yield ""


def _family(family: str, about: str, rows: list[Operator]) -> Iterator[str]:
    yield f"## {family}\n"
    yield f"{about} Hook: `{FAMILY_HOOKS[family]}`.\n"
    yield "| operator | tolerance | layouts | needs | dims | edges |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for op in rows:
        cells = (_words(op.layouts), op.needs or "–", _words(op.dims), _words(op.edges))
        yield f"| [`{op.name}`](#{_anchor(op.name)}) | {op.tolerance} | {' | '.join(cells)} |"
    yield ""
    for op in rows:
        yield f"### {op.name}\n"
        yield f"```python\n{_signature(op)}\n```\n"
        yield f"```text\n{op.doc}\n```\n"
        if op.composed_of:
            yield f"Optional: composed of {_words(op.composed_of)} where no kernel serves it.\n"


def _signature(op: Operator) -> str:
    """On one line if it fits, else one parameter a line; type names without their modules."""
    text = op.signature
    if len(text) <= 96:
        return text
    head, _, rest = text.partition("(")
    inner, _, result = rest.rpartition(")")
    parameters = "".join(f"    {one.strip()},\n" for one in _split(inner))
    return f"{head}(\n{parameters}){result}" if inner else text


def _split(parameters: str) -> list[str]:
    """At commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in parameters:
        depth += letter in "[("
        depth -= letter in "])"
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _anchor(name: str) -> str:
    return name.replace(".", "")


def _words(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "–"


def _same(what: str, code: set[str], text: set[str]) -> None:
    if code != text:
        raise SystemExit(
            f"{what} without a meaning here: {sorted(code - text)}; "
            f"meanings without a dim: {sorted(text - code)}"
        )


def main() -> None:
    """Write the page, or with --check say whether it is fresh."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if stale")
    options = parser.parse_args()
    if not options.check:
        PLACE.write_text(page())
        print(f"wrote {PLACE.relative_to(ROOT)}")
    elif not PLACE.is_file() or PLACE.read_text() != page():
        sys.exit("docs/operators.md is stale; run `make docs`")


if __name__ == "__main__":
    main()
