"""What is installed, what loads, and what will get in the way; no model is needed.

In: this machine's packages. Out: platforms and findings, as a table or JSON, and an exit code.
Does not know: environment variables (the caller passes what it found), models.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deepinfer.errors import PlatformError
from deepinfer.plugin.declare import is_name
from deepinfer.plugin.display import aligned
from deepinfer.plugin.failures import HookFailed
from deepinfer.plugin.find import GROUP, PATIENCE_S, Layer, Offer, blamed, installed, load_offer
from deepinfer.plugin.packages import package_findings
from deepinfer.plugin.plan import device_words
from deepinfer.plugin.stack import ONE_DEVICE, describe
from deepinfer.plugin.types import API, Absent, Check, Device, Finding


@dataclass(frozen=True)
class Installed:
    """One installed platform. `loads` is "yes" or why not; `device` is the device or why not."""

    name: str
    distribution: str
    version: str
    interface: str
    loads: str
    device: str


@dataclass(frozen=True)
class Report:
    """Everything `doctor` found. Exit code: 0 fine, 1 warnings, 2 cannot run."""

    platforms: tuple[Installed, ...]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """2 if nothing can run or something is broken, 1 for warnings, else 0."""
        levels = {finding.level for finding in self.findings}
        return 2 if "error" in levels else 1 if "warning" in levels else 0

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(
            {
                "core_interface": f"{API[0]}.{API[1]}",
                "platforms": [asdict(one) for one in self.platforms],
                "findings": [asdict(finding) for finding in self.findings],
                "exit_code": self.exit_code,
            },
            indent=1,
            ensure_ascii=False,
        )

    def __str__(self) -> str:
        heads: tuple[str, ...] = ("platform", "from", "interface", "loads", "device")
        rows = [
            (one.name, f"{one.distribution} {one.version}", one.interface, one.loads, one.device)
            for one in self.platforms
        ]
        lines = [*aligned([heads, *rows]), ""]
        for finding in self.findings:
            lines.append(f"{finding.level:<8} {finding.subject}: {finding.message}")
            if finding.advice:
                lines.append(f"{'':<8} {finding.advice}")
        words = {0: "can run", 1: "can run, with warnings", 2: "cannot run as it is"}
        return "\n".join([*lines, words[self.exit_code]])


def examine(
    extra: Iterable[Finding] = (),
    *,
    offers: Mapping[str, Sequence[Offer]] | None = None,
    distributions: Iterable[importlib.metadata.Distribution] | None = None,
    patience: float = PATIENCE_S,
) -> Report:
    """Look at everything; `extra` are the caller's own findings, such as environment variables.

    Every installed platform is imported here, one after the other; a broken one is a finding.
    """
    offers = installed() if offers is None else offers
    platforms: list[Installed] = []
    findings: list[Finding] = []
    usable = False
    for name, offered in offers.items():
        findings += _offer_findings(name, offered)
        for offer in offered:
            row, found, has_device = _try(offer, patience)
            platforms.append(row)
            findings += found
            usable = usable or (has_device and len(offered) == 1)
    if not usable:
        findings.append(Finding(
            "error", "platforms", "no installed platform loads and has a device here",
            "install the package of your device, or run the core's own platform: reference",
        ))
    findings += package_findings(distributions)
    return Report(tuple(platforms), (*findings, *extra))


def _offer_findings(name: str, offered: Sequence[Offer]) -> list[Finding]:
    findings = []
    if len(offered) > 1:
        owners = " and ".join(f"{offer.distribution} {offer.version}" for offer in offered)
        findings.append(Finding(
            "error", f"platform {name}", f"offered twice, by {owners}",
            "uninstall all but one of them",
        ))
    if not is_name(name):
        findings.append(Finding(
            "warning", f"platform {name!r}",
            f"{offered[0].distribution} offers it under a name that no platform string can hold",
            f'names in the entry-point group {GROUP} are lower-case letters, digits and "_"',
        ))
    return findings


def _try(offer: Offer, patience: float) -> tuple[Installed, list[Finding], bool]:
    """Load one platform and ask for its device; both failures become rows of the report."""
    try:
        layer = load_offer(offer, patience)
    except PlatformError as cause:
        row = Installed(offer.name, offer.distribution, offer.version, "–", "no", "–")
        advice = f"repair or uninstall {offer.distribution}"
        return row, [Finding("warning", f"platform {offer.name}", str(cause), advice)], False
    device, words, findings = _device(layer)
    findings += _checks(layer, device)
    interface = f"{layer.api[0]}.{layer.api[1]}"
    row = Installed(offer.name, offer.distribution, offer.version, interface, "yes", words)
    return row, findings, device is not None


def _device(layer: Layer) -> tuple[Device | None, str, list[Finding]]:
    if not layer.has("deepinfer_device"):
        return None, "overlay, describes none", []
    try:
        answer = describe(layer, ONE_DEVICE)
    except PlatformError as cause:
        return None, "asking failed", [Finding("warning", f"platform {layer.name}", str(cause))]
    if isinstance(answer, Absent):
        return None, f"absent: {answer.reason}", []
    return answer, device_words(answer), []


def _checks(layer: Layer, device: Device | None) -> list[Finding]:
    """Run the checks a platform brings; one that raises is itself a finding."""
    findings: list[Finding] = []
    try:
        checks = layer.ask_all("deepinfer_checks", device=device)
    except PlatformError as cause:
        return [Finding("warning", f"platform {layer.name}", str(cause))]
    for check in checks:
        findings += _run(layer, check)
    return findings


def _run(layer: Layer, check: object) -> list[Finding]:
    subject = f"platform {layer.name}"
    if not isinstance(check, Check):
        return [Finding("warning", subject, f"deepinfer_checks yielded {check!r}, no Check(...)")]
    try:
        with blamed(f"check {check.name}"):
            found: Any = check.run()
    except HookFailed as cause:
        return [Finding("warning", subject, str(cause))]
    if isinstance(found, list) and all(isinstance(one, Finding) for one in found):
        return found
    return [Finding("warning", subject, f"check {check.name} returned {found!r}, no findings")]
