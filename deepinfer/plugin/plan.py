"""What will run where, decided before anything is loaded, as plain data.

In: choices and facts. Out: a frozen `Plan` with an id that is equal on all ranks.
Does not know: kernels as code, tensors, how ranks talk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deepinfer.plugin.failures import DamagedPlan, PlanMismatch
from deepinfer.plugin.types import API, Device, Facts, Mesh, Model


@dataclass(frozen=True)
class LayerFacts:
    """A layer in the plan. `role` is "ground", "not ground" (could be one) or "overlay"."""

    name: str
    distribution: str
    version: str
    api: tuple[int, int]
    role: str


@dataclass(frozen=True)
class Settled:
    """The layout of one kind in one token range."""

    kind: str
    tokens: tuple[int, int]
    layout: str


@dataclass(frozen=True)
class Row:
    """One operator in one token bucket. Without a kernel it is composed of other operators."""

    op: str
    tokens: tuple[int, int]
    layer: str = ""
    kernel: str = ""
    mark: str = ""
    unverified: str = ""
    graph: str = ""
    note: str = ""
    became: str = ""
    composed_of: tuple[str, ...] = ()
    passed_over: tuple[tuple[str, str], ...] = ()

    @property
    def served_by(self) -> str:
        """ "platform:kernel" with its mark, or "composed"."""
        return f"{self.layer}:{self.kernel}{self.mark}" if self.kernel else "composed"


@dataclass(frozen=True)
class Plan:
    """Which kernel serves which operator, and why the others do not. `str(plan)` is the table."""

    platform: str
    layers: tuple[LayerFacts, ...]
    device: Device
    model: Model
    mesh: Mesh
    layouts: tuple[Settled, ...]
    modes: Facts
    rows: tuple[Row, ...]
    memory: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Twelve hex digits over everything that must be equal on all ranks."""
        text = json.dumps(self.agreed(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def agreed(self) -> dict[str, Any]:
        """What ranks must agree on: choices and facts, not reasons, addresses or this rank."""
        whole = self.to_dict()
        for name in ("plan_id", "memory"):
            del whole[name]
        del whole["mesh"]["rank"]
        for name in ("torch_device", "memory_bytes"):
            del whole["device"][name]
        for row in whole["rows"]:
            for name in ("passed_over", "note", "unverified", "became"):
                del row[name]
        whole["core_api"] = list(API)
        return whole

    def with_became(self, became: Mapping[tuple[str, str], str]) -> Plan:
        """The plan with what libraries chose by themselves (R6); the id stays."""
        rows = tuple(
            replace(row, became=became.get((row.op, f"{row.layer}:{row.kernel}"), row.became))
            for row in self.rows
        )
        return replace(self, rows=rows)

    def with_memory(self, lines: Sequence[str]) -> Plan:
        """The plan with the lines of the printed budget; the id stays."""
        return replace(self, memory=tuple(lines))

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, without its id."""
        device, model = self.device, self.model
        return {
            "plan_id": "",
            "platform": self.platform,
            "layers": [_listed(vars(layer)) for layer in self.layers],
            "device": {**vars(device), "facts": _listed(device.facts)},
            "model": {
                "name": model.name,
                "dims": _listed(model.dims),
                "features": sorted(model.features),
            },
            "mesh": dict(vars(self.mesh)),
            "layouts": [_listed(vars(one)) for one in self.layouts],
            "modes": _listed(self.modes),
            "rows": [{**_listed(vars(row)), "served_by": row.served_by} for row in self.rows],
            "memory": list(self.memory),
        }

    def to_json(self) -> str:
        """JSON text that `from_json` reads; ranks exchange it, `plan --json` prints it."""
        return json.dumps({**self.to_dict(), "plan_id": self.id}, indent=1, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read a plan back; one whose content does not fit its id is refused."""
        try:
            whole = json.loads(text)
            plan = _from_dict(whole)
        except (ValueError, KeyError, TypeError) as cause:
            raise DamagedPlan(
                f"this is not the JSON of a plan ({type(cause).__name__}: {cause}); "
                "write one with deepinfer plan --json"
            ) from cause
        if whole["plan_id"] != plan.id:
            raise DamagedPlan(
                f"the plan says it is {whole['plan_id']} but its content makes {plan.id}; "
                "it was edited, or written by a core with another interface"
            )
        return plan

    def rows_of(self, op: str) -> tuple[Row, ...]:
        """The rows of one operator, by tokens."""
        return tuple(row for row in self.rows if row.op == op)

    def explain(self, op: str) -> str:
        """One operator in full: who serves it, and every reason of the others."""
        from deepinfer.plugin.display import explanation

        return explanation(self, op)

    def __str__(self) -> str:
        from deepinfer.plugin.display import table

        return table(self)


def device_words(device: Device) -> str:
    """A device in one line: name, how many, and its first facts."""
    many = f" ×{device.count}" if device.count > 1 else ""
    facts = [f"{name.replace('_', ' ')} {value}" for name, value in device.facts.items()]
    return ", ".join([device.name + many, *facts[:3]])


def diff(a: Plan, b: Plan) -> list[str]:
    """Where two plans differ in what ranks must agree on, one line each: "where: a | b"."""
    left, right = _flat(a), _flat(b)
    return [
        f"{where}: {left.get(where, 'nothing')} | {right.get(where, 'nothing')}"
        for where in {**left, **right}
        if left.get(where) != right.get(where)
    ]


def agree(plans: Sequence[Plan]) -> str:
    """The id that all ranks share (R8); `plans` are in rank order."""
    first = plans[0]
    for rank, other in enumerate(plans[1:], start=1):
        if other.id != first.id:
            lines = "\n  ".join(diff(first, other))
            raise PlanMismatch(
                f"rank 0 has plan {first.id}, rank {rank} has plan {other.id}; they differ in\n"
                f"  {lines}\n"
                "Install the same packages on every machine and start all ranks alike"
            )
    return first.id


def _flat(plan: Plan) -> dict[str, str]:
    whole = plan.agreed()
    flat: dict[str, str] = {}
    for row in whole.pop("rows"):
        key = f"{row.pop('op')} {row['tokens'][0]}-{row.pop('tokens')[1]}"
        flat[key] = row.pop("served_by")
        flat[f"{key} graph"] = row["graph"]
    for layer in whole.pop("layers"):
        flat[f"layer {layer['name']}"] = (
            f"{layer['distribution']} {layer['version']}, interface "
            f"{layer['api'][0]}.{layer['api'][1]}, {layer['role']}"
        )
    for one in whole.pop("layouts"):
        flat[f"layout {one['kind']} {one['tokens'][0]}-{one['tokens'][1]}"] = one["layout"]
    for part, value in whole.items():
        _flatten(part, value, flat)
    return flat


def _flatten(where: str, value: Any, flat: dict[str, str]) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _flatten(f"{where} {name}", inner, flat)
    else:
        flat[where] = value if isinstance(value, str) else json.dumps(value)


def _listed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _fact(value: Any) -> Any:
    return tuple(_fact(part) for part in value) if isinstance(value, list) else value


def _facts(values: Mapping[str, Any]) -> Facts:
    return Facts({name: _fact(value) for name, value in values.items()})


def _tupled(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _fact(value) for name, value in values.items()}


def _from_dict(whole: Mapping[str, Any]) -> Plan:
    device, model = dict(whole["device"]), whole["model"]
    rows = [{name: value for name, value in row.items() if name != "served_by"}
            for row in whole["rows"]]
    return Plan(
        platform=whole["platform"],
        layers=tuple(LayerFacts(**_tupled(layer)) for layer in whole["layers"]),
        device=Device(**{**device, "facts": _facts(device["facts"])}),
        model=Model(model["name"], _facts(model["dims"]), frozenset(model["features"])),
        mesh=Mesh(**whole["mesh"]),
        layouts=tuple(Settled(**_tupled(one)) for one in whole["layouts"]),
        modes=_facts(whole["modes"]),
        rows=tuple(Row(**_tupled(row)) for row in rows),
        memory=tuple(whole["memory"]),
    )
