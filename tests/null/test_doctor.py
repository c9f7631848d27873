"""`doctor`: what is installed and what is in the way. BL-91."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path

import pytest
from toy import DEVICE, distribution, module

import deepinfer
from deepinfer.plugin import Check, Finding, absent
from deepinfer.plugin.doctor import examine
from deepinfer.plugin.find import Offer
from deepinfer.plugin.packages import LOOK_ALIKES, package_findings


@pytest.fixture
def offers(monkeypatch):
    """Makes offers of platforms from module objects."""

    def make(**modules):
        for made in modules.values():
            monkeypatch.setitem(sys.modules, made.__name__, made)
        return {
            name: (Offer(name, made.__name__, f"toy-{name}", "0.1"),)
            for name, made in modules.items()
        }

    return make


def torch_only(tmp_path):
    """The metadata of a machine that has torch and nothing else."""
    return [package(tmp_path, "torch", "2.13.0")]


def package(tmp_path, name, version="1.0", modules=None, entry_points=""):
    """One distribution's metadata; modules are files it owns."""
    info = tmp_path / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    (info / "RECORD").write_text("".join(f"{one},,\n" for one in modules or ()))
    return importlib.metadata.Distribution.at(info)


def said(report, level=None):
    """Findings as text."""
    return [f"{f.subject}: {f.message}" for f in report.findings if level in (None, f.level)]


def ground(name, **more):
    """A platform module with a device."""
    return module(name, deepinfer_device=lambda want: DEVICE, **more)


def test_a_good_machine_is_green(tmp_path, offers):
    report = examine(offers=offers(acme=ground("acme")), distributions=torch_only(tmp_path))
    assert report.exit_code == 0
    assert re.search(
        r"acme +toy-acme 0.1 +1.0 +yes +Toy One, compute capability 9.0", str(report)
    )
    assert str(report).endswith("can run")


def test_a_machine_without_a_usable_platform_cannot_run(tmp_path, offers):
    gone = module("gone", deepinfer_device=lambda want: absent("no card in any slot"))
    found = offers(gone=gone, over=module("over"))
    report = examine(offers=found, distributions=torch_only(tmp_path))
    assert report.exit_code == 2
    assert "absent: no card in any slot" in str(report)
    assert "overlay, describes none" in str(report)
    assert "reference" in str(report)


def test_a_broken_platform_is_a_warning_that_says_why(tmp_path, offers):
    found = offers(acme=ground("acme"), old=ground("old", DEEPINFER_API=(99, 0)))
    report = examine(offers=found, distributions=torch_only(tmp_path))
    assert report.exit_code == 1
    assert any("interface 99.0; this core fits 1.0" in text for text in said(report, "warning"))


def test_a_name_offered_twice_is_an_error_that_names_both(tmp_path, offers):
    one, two = offers(acme=ground("acme")), offers(zeta=ground("zeta"))
    found = {"acme": (*one["acme"], *two["zeta"]), **offers(base=ground("base"))}
    report = examine(offers=found, distributions=torch_only(tmp_path))
    assert "platform acme: offered twice, by toy-acme 0.1 and toy-zeta 0.1" in said(report)
    assert report.exit_code == 2


def test_a_name_that_no_string_can_hold_is_reported(tmp_path, offers):
    (offer,) = offers(acme=ground("acme"))["acme"]
    report = examine(offers={"Acme-X": (offer,)}, distributions=torch_only(tmp_path))
    assert any("no platform string can hold" in text for text in said(report, "warning"))


def test_a_device_hook_that_raises_is_a_finding(tmp_path, offers):
    odd = module("odd", deepinfer_device=lambda want: 1 / 0)
    report = examine(offers=offers(odd=odd), distributions=torch_only(tmp_path))
    assert any("ZeroDivisionError" in text for text in said(report, "warning"))
    assert "asking failed" in str(report)


def test_checks_of_platforms_run_and_one_that_raises_hides_no_other(tmp_path, offers):
    def checks(device):
        yield Check("driver", lambda: [Finding("warning", "driver", f"old for {device.name}")])
        yield Check("broken", lambda: 1 / 0)
        yield Check("odd", lambda: "fine")
        yield "not a check"

    found = offers(acme=ground("acme", deepinfer_checks=checks))
    report = examine(offers=found, distributions=torch_only(tmp_path))
    texts = "\n".join(said(report, "warning"))
    for part in ("driver: old for Toy One", "check broken raised ZeroDivisionError",
                 "check odd returned 'fine'", "yielded 'not a check'"):
        assert part in texts


def test_findings_of_the_caller_are_part_of_the_report(tmp_path, offers):
    wrong = Finding("error", "DEEPINFER_PLATFROM", "unknown", "did you mean DEEPINFER_PLATFORM?")
    found = offers(acme=ground("acme"))
    report = examine([wrong], offers=found, distributions=torch_only(tmp_path))
    assert report.exit_code == 2
    assert "did you mean DEEPINFER_PLATFORM?" in str(report)


def test_the_json_says_the_same(tmp_path, offers):
    report = examine(offers=offers(acme=ground("acme")), distributions=torch_only(tmp_path))
    whole = json.loads(report.to_json())
    assert whole["exit_code"] == 0
    assert whole["platforms"][0]["name"] == "acme"
    assert {"level", "subject", "message", "advice"} == set(whole["findings"][0])


def test_a_module_owned_by_two_distributions_is_reported(tmp_path):
    found = package_findings([
        package(tmp_path, "triton", modules=["triton/__init__.py"]),
        package(tmp_path, "triton-acme", modules=["triton/__init__.py", "acme/x.py"]),
        package(tmp_path, "torch", "2.13.0"),
    ])
    (clash,) = [one for one in found if one.level == "warning"]
    assert clash.subject == "module triton"
    assert clash.message == "owned by triton and triton-acme"


def test_parts_of_a_namespace_package_are_no_clash(tmp_path):
    found = package_findings([
        package(tmp_path, "one", modules=["google/one.py"]),
        package(tmp_path, "two", modules=["google/two.py"]),
        package(tmp_path, "torch", "2.13.0"),
    ])
    assert {one.level for one in found} == {"ok"}


def test_a_package_that_runs_at_every_import_of_torch_is_reported(tmp_path):
    entry = "[torch.backends]\nacme = torch_acme:autoload\n"
    found = package_findings([*torch_only(tmp_path),
                              package(tmp_path, "torch-acme", entry_points=entry)])
    assert "runs torch_acme:autoload whenever torch is imported" in found[0].message


@pytest.mark.parametrize(
    ("names", "level", "text"),
    [
        ([("torch", "2.13.0+cu130"), ("acme-blas-cu12", "1")], "warning", "CUDA 12 and 13"),
        ([("torch", "2.13.0+cu130"), ("acme-blas-cu13", "1")], "ok", "CUDA 13"),
        ([("torch", "2.13.0+cpu")], "ok", "no CUDA packages"),
        ([("numpy", "2.0")], "error", "not installed"),
    ],
)
def test_the_cuda_majors_of_torch_and_its_friends_are_compared(tmp_path, names, level, text):
    found = package_findings([package(tmp_path, *name) for name in names])
    assert [(one.subject, one.level) for one in found] == [("torch", level)]
    assert text in found[0].message


@pytest.mark.parametrize("name", sorted(LOOK_ALIKES))
def test_bl_91_a_foreign_module_of_a_known_name_is_told_by_what_it_lacks(
    name, tmp_path, monkeypatch
):
    (tmp_path / f"{name}.py").write_text("def something_else(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    found = [one for one in package_findings(torch_only(tmp_path)) if name in one.subject]
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert "is not the library that kernels need: it lacks" in found[0].message
    assert str(tmp_path) in found[0].message


def test_bl_91_a_look_alike_that_cannot_be_imported_is_a_finding(tmp_path, monkeypatch):
    (tmp_path / "deep_ep.py").write_text("raise OSError('libnvshmem.so missing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deep_ep", raising=False)
    (found,) = [o for o in package_findings(torch_only(tmp_path)) if "deep_ep" in o.subject]
    assert "libnvshmem.so missing" in found.message


def test_bl_91_no_text_of_the_core_tells_anybody_to_install_a_name_that_is_not_the_real_one():
    wrong = re.compile(r"install[^\n]{0,40}\b(deep[-_]gemm|deep[-_]ep|flash[-_]mla)\b(?!\])")
    core = Path(next(iter(deepinfer.__path__)))
    guilty = [file.name for file in core.rglob("*.py") if wrong.search(file.read_text())]
    assert guilty == []


def test_doctor_looks_at_the_real_machine_without_importing_what_is_not_a_platform(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    distribution(tmp_path, "stranger", "raise SystemExit", group="another.group")
    report = examine()
    assert report.exit_code in (0, 1, 2)
    assert "toy_stranger" not in sys.modules
    assert any(one.name == "reference" for one in report.platforms)
