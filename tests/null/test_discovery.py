"""Finding platforms: entry points on disk, broken imports, versions. BL-85, 86, 87, 89."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from toy import distribution

import deepinfer
from deepinfer.errors import PlatformError
from deepinfer.plugin import find
from deepinfer.plugin.failures import (
    BadPlugin,
    ImportFailed,
    NoPlatform,
    OfferedTwice,
    WrongInterface,
)
from deepinfer.plugin.find import installed, load
from deepinfer.plugin.interface import check_interface, is_spoken, spoken_words
from deepinfer.plugin.stack import load_platform

GOOD = "DEEPINFER_API = (1, 0)\n"
REPOSITORY = Path(next(iter(deepinfer.__path__))).parent


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on sys.path where distributions can be put; what they import is forgotten."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("toy_"):
            del sys.modules[name]


def test_a_platform_on_disk_is_found_with_its_distribution_and_version(site):
    distribution(site, "acme", GOOD)
    (offer,) = installed()["acme"]
    assert (offer.distribution, offer.version, offer.module) == ("toy-acme", "0.1", "toy_acme")
    (layer,) = load(["acme"])
    assert (layer.name, layer.distribution, layer.api) == ("acme", "toy-acme", (1, 0))


def test_the_reference_is_built_in_and_needs_no_entry_point():
    (offer,) = installed()["reference"]
    assert (offer.module, offer.distribution) == ("deepinfer.reference", "deepinfer")


def test_listing_platforms_imports_none_of_them(site):
    distribution(site, "acme", GOOD)
    installed()
    assert "toy_acme" not in sys.modules


def test_bl_85_a_named_platform_that_raises_stops_the_start_and_keeps_the_traceback(site):
    distribution(site, "broken", GOOD + "def register():\n    raise KeyError('lut')\nregister()\n")
    with pytest.raises(ImportFailed) as error:
        load_platform("broken")
    assert "toy-broken 0.1" in str(error.value)
    assert "KeyError: 'lut'" in str(error.value)
    assert error.value.__cause__.__traceback__.tb_next is not None


def test_bl_85_auto_does_not_step_over_a_broken_platform(site):
    distribution(site, "broken", GOOD + "raise RuntimeError('half installed')\n")
    with pytest.raises(ImportFailed, match="half installed"):
        load_platform("auto")


def test_bl_85_a_broken_platform_that_is_not_named_does_no_harm(site):
    distribution(site, "broken", GOOD + "raise RuntimeError('half installed')\n")
    distribution(site, "acme", GOOD)
    assert load_platform("acme").name == "acme"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise OSError('libacme.so.3: cannot open shared object file')", "OSError: libacme.so.3"),
        ("raise RuntimeError('driver too old')", "RuntimeError: driver too old"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import no_such_module_here", "No module named 'no_such_module_here'"),
        ("x = = 1", "SyntaxError"),
    ],
)
def test_bl_86_whatever_an_import_raises_is_named_with_its_plugin(site, line, said):
    distribution(site, "acme", f"{GOOD}{line}\n")
    with pytest.raises(PlatformError) as error:
        load_platform("acme")
    assert said in str(error.value)
    assert "platform acme (toy-acme 0.1, module toy_acme)" in str(error.value)


def test_bl_86_a_platform_that_hangs_at_import_is_named_on_stderr(site, monkeypatch):
    spoken = threading.Event()

    class Listening(io.StringIO):
        def write(self, text: str) -> int:
            count = super().write(text)
            spoken.set()
            return count

    heard = Listening()
    monkeypatch.setattr(sys, "stderr", heard)
    monkeypatch.setattr(threading, "toy_event", spoken, raising=False)
    distribution(site, "slow", f"{GOOD}import threading\nthreading.toy_event.wait(20)\n")
    load_platform("slow", patience=0.01)
    assert "platform slow (toy-slow 0.1, module toy_slow) is still importing" in heard.getvalue()


def test_bl_87_one_name_from_two_distributions_is_an_error_that_names_both(site):
    distribution(site, "acme", GOOD)
    distribution(site, "zeta", GOOD, platform="acme")
    with pytest.raises(OfferedTwice, match=r"toy-acme 0\.1 and toy-zeta 0\.1"):
        load_platform("acme")


def test_bl_87_nobody_may_offer_another_reference(site):
    distribution(site, "acme", GOOD, platform="reference")
    with pytest.raises(OfferedTwice, match="toy-acme"):
        load_platform("reference")


def test_bl_87_an_explicit_choice_imports_only_that_one(site):
    distribution(site, "one", GOOD)
    distribution(site, "two", GOOD)
    load_platform("one")
    assert "toy_one" in sys.modules
    assert "toy_two" not in sys.modules


def test_bl_87_an_absent_platform_lists_what_is_installed_and_the_nearest(site):
    distribution(site, "acme", GOOD)
    with pytest.raises(NoPlatform, match=r"acne is not installed \(did you mean acme\?\)") as error:
        load_platform("acne")
    assert "reference" in str(error.value)


@pytest.mark.parametrize("stated", ["0", "(0, 9)", "(99, 0)", "(1, 1)", "1.0", "(1,)", "(1, True)"])
def test_bl_89_another_interface_is_refused_before_its_imports_run(site, stated):
    source = f"DEEPINFER_API = {stated}\nimport a_module_of_another_age\n"
    distribution(site, "old", source)
    with pytest.raises(WrongInterface, match=r"toy-old 0\.1.*fits 1\.0"):
        load_platform("old")
    assert "toy_old" not in sys.modules


def test_bl_89_a_platform_without_a_version_is_told_what_to_write(site):
    distribution(site, "mute", "x = 1\n")
    with pytest.raises(WrongInterface, match=re.escape("DEEPINFER_API = (major, minor)")):
        load_platform("mute")


def test_bl_89_a_computed_version_is_checked_after_the_import(site):
    distribution(site, "clever", "DEEPINFER_API = tuple([3, 0])\n")
    with pytest.raises(WrongInterface, match=r"interface 3\.0"):
        load_platform("clever")


def test_the_same_major_up_to_our_minor_fits_and_the_major_before():
    assert is_spoken((3, 2), spoken=(3, 2))
    assert is_spoken((3, 0), spoken=(3, 2))
    assert is_spoken((2, 9), spoken=(3, 2))
    assert not is_spoken((3, 3), spoken=(3, 2))
    assert not is_spoken((1, 0), spoken=(3, 2))
    assert not is_spoken((4, 0), spoken=(3, 2))
    assert not is_spoken((0, 1), spoken=(1, 0)), "there never was an interface 0"
    assert spoken_words((3, 2)) == "2.x, 3.0 to 3.2"


def test_a_newer_plugin_is_told_to_get_a_newer_core():
    with pytest.raises(WrongInterface, match="a newer deepinfer"):
        check_interface("acme", (2, 0), spoken=(1, 0))
    with pytest.raises(WrongInterface, match="a newer version of the platform"):
        check_interface("acme", (1, 0), spoken=(3, 0))


def test_an_entry_point_must_name_a_module(site):
    distribution(site, "acme", GOOD)
    info = site / "toy_acme-0.1.dist-info" / "entry_points.txt"
    info.write_text("[deepinfer.platforms]\nacme = toy_acme:plugin\n")
    with pytest.raises(BadPlugin, match="must name a module"):
        load_platform("acme")


def test_importing_the_plugin_package_brings_neither_torch_nor_other_rooms():
    script = (
        "import sys, deepinfer.plugin, deepinfer.plugin.bind, deepinfer.plugin.doctor\n"
        "import deepinfer.plugin.offers\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('deepinfer.')}\n"
        "assert rooms <= {'plugin', 'errors'}, rooms\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=REPOSITORY)


def test_a_hooked_platform_is_asked_nothing_at_load(site):
    source = (
        "from deepinfer.plugin import hookimpl\n" + GOOD + "@hookimpl\n"
        "def deepinfer_device(want):\n    raise AssertionError('asked too early')\n"
    )
    distribution(site, "acme", source)
    assert load(["acme"])[0].has("deepinfer_device")
    assert find.GROUP == "deepinfer.platforms"
