"""Platform strings: grammar, aliases, the ground, and what auto does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import DEVICE, declared, floor, kernel, layer, module

from deepinfer.plugin import Want, absent
from deepinfer.plugin.failures import BadAnswer, BadPlatform, NoAutomaticChoice, NoDevice
from deepinfer.plugin.find import Offer
from deepinfer.plugin.stack import Platform, ground, load_platform, parse, spell

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,7}", fullmatch=True).filter(lambda name: name != "auto")


@given(st.lists(NAMES, min_size=1, max_size=4, unique=True))
def test_any_list_of_names_can_be_spelled_and_read_back(names):
    assert parse(spell(names), {}) == tuple(names)


def test_an_alias_is_expanded_wherever_it_stands():
    assert parse("h20") == ("triton_portable", "nvidia_sm90")
    assert parse("acme + h20") == ("acme", "triton_portable", "nvidia_sm90")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("acme+", "'' in platform 'acme+' is not a name"),
        ("Acme", "lower-case letters"),
        ("acme-one", "is not a name"),
        ("9acme", "is not a name"),
        ("acme+acme", "names acme more than once"),
        ("h20+nvidia_sm90", "names nvidia_sm90 more than once"),
        ("auto+reference", "auto stands alone"),
    ],
)
def test_a_string_outside_the_grammar_is_refused_in_words(text, message):
    with pytest.raises(BadPlatform, match=re.escape(message)):
        parse(text)


def test_the_right_most_layer_that_describes_devices_is_the_ground():
    platform = Platform((floor("left"), layer("middle"), floor("right"), layer("over")))
    found = ground(platform)
    assert (found.layer, found.others, found.device) == ("right", ("left",), DEVICE)


def test_an_absent_ground_stops_and_no_other_layer_takes_its_place():
    gone = layer("gone", deepinfer_device=lambda want: absent("no driver"))
    with pytest.raises(NoDevice, match="gone has no device here: no driver"):
        ground(Platform((floor("spare"), gone)))


def test_layers_without_any_device_are_told_to_add_a_ground():
    with pytest.raises(NoDevice, match=r"acme\+reference"):
        ground(Platform((layer("acme"),)))


@pytest.mark.parametrize("answer", [True, "cpu", 0])
def test_a_device_hook_must_answer_device_or_absent(answer):
    odd = layer("odd", deepinfer_device=lambda want: answer)
    with pytest.raises(BadAnswer, match=r"odd \(toy-odd 0.1\) returned .*absent"):
        ground(Platform((odd,)))


def test_a_ground_that_returns_nothing_is_an_error():
    with pytest.raises(BadAnswer, match="returned None"):
        ground(Platform((layer("odd", deepinfer_device=lambda want: None),)))


def test_a_ground_describes_as_many_devices_as_were_asked_for():
    with pytest.raises(BadAnswer, match="described 1 devices where 8 were asked for"):
        ground(Platform((floor("base"),)), Want(8))


def offers(monkeypatch, **answers):
    """Installed platforms whose device hook gives these answers; None is an overlay."""
    found = {}
    for name, answer in answers.items():
        hooks = {} if answer is None else {"deepinfer_device": lambda want, a=answer: a}
        made = module(name, **hooks)
        monkeypatch.setitem(__import__("sys").modules, made.__name__, made)
        found[name] = (Offer(name, made.__name__, f"toy-{name}", "0.1"),)
    return found


def test_auto_uses_the_only_ground_whose_device_is_here(monkeypatch):
    found = offers(monkeypatch, one=DEVICE, two=absent("no card"), reference=DEVICE, over=None)
    assert load_platform("auto", offers=found).name == "one"


def test_auto_never_chooses_between_two(monkeypatch):
    found = offers(monkeypatch, one=DEVICE, two=DEVICE)
    with pytest.raises(NoAutomaticChoice, match="--platform one or --platform two"):
        load_platform("auto", offers=found)


def test_auto_without_a_device_names_the_reference_and_every_reason(monkeypatch):
    found = offers(monkeypatch, two=absent("no card"), over=None, reference=DEVICE)
    with pytest.raises(NoAutomaticChoice) as error:
        load_platform("auto", offers=found)
    assert "--platform reference" in str(error.value)
    assert "two: no card" in str(error.value)
    assert "over describes no device" in str(error.value)


def test_the_string_in_a_plan_is_always_expanded(monkeypatch):
    found = offers(monkeypatch, acme=None, base=DEVICE)
    platform = load_platform("short", aliases={"short": "acme+base"}, offers=found)
    assert platform.name == "acme+base"


def test_order_of_the_string_is_order_of_lookup():
    kernels = [kernel("tensor.norm", "k")]
    left = declared(layer("a", kernels), floor("b", kernels))
    right = declared(layer("b", kernels), floor("a", kernels))
    assert [one.label for one in left.candidates["tensor.norm"]] == ["a:k", "b:k"]
    assert [one.label for one in right.candidates["tensor.norm"]] == ["b:k", "a:k"]
