"""The plan as data: its id, its JSON, differences, its table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import FUSED, MODEL, NORM, READ, WRITE, catalogue, floor, kernel, layer, plan_of

from deepinfer.errors import UsageError
from deepinfer.plugin import Device, Facts, Mesh, Model, no
from deepinfer.plugin.failures import DamagedPlan
from deepinfer.plugin.plan import LayerFacts, Plan, Row, Settled, agree, diff

ONE = catalogue(NORM)


def example(**changes):
    """A plan of two layers and three buckets."""
    upper = layer("acme", [kernel(NORM, "big", tokens=(257, None)),
                           kernel(NORM, "odd", supports=lambda p: no("hidden must be odd"))])
    base = floor("base", [kernel(NORM, "k", graph="never: host waits")])
    plan = plan_of(upper, base, catalogue=ONE, borders=(16,), modes={"batch_invariant": False})
    return replace(plan, **changes)


def test_the_id_is_twelve_hex_digits_and_the_same_in_every_process():
    assert len(example().id) == 12
    assert int(example().id, 16) >= 0
    assert example().id == example().id


@pytest.mark.parametrize(
    "change",
    [
        {"platform": "base"},
        {"modes": Facts(batch_invariant=True)},
        {"model": Model("toy", Facts(hidden=512, heads=4))},
        {"model": replace(MODEL, features=frozenset({"draft"}))},
        {"mesh": Mesh(2)},
        {"device": Device("toy", "Toy Two", "cpu")},
        {"layouts": (Settled("kv", (1, 8192), "plain"),)},
        {"layers": (LayerFacts("acme", "toy-acme", "0.2", (1, 0), "overlay"),)},
        {"rows": (Row(NORM, (1, 8192), "base", "k"),)},
        {"rows": (Row(NORM, (1, 8192), "base", "k", "?"),)},
    ],
)
def test_whatever_ranks_must_share_changes_the_id(change):
    assert example(**change).id != example().id
    assert diff(example(), example(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"mesh": Mesh(1, 3)},
        {"memory": ("kv 3 GiB",)},
        {"device": replace(example().device, torch_device="cpu:3", memory_bytes=5)},
    ],
)
def test_what_is_this_rank_s_own_does_not_change_the_id(change):
    assert example(**change).id == example().id
    assert diff(example(), example(**change)) == []
    assert agree([example(), example(**change)]) == example().id


def test_reasons_do_not_change_the_id():
    rows = tuple(replace(row, passed_over=(), note="") for row in example().rows)
    assert example(rows=rows).id == example().id


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5),
                  st.tuples(st.integers(0, 9), st.text(max_size=3)))


@given(
    st.dictionaries(st.text(max_size=6), PLAIN, max_size=4),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=2),
)
def test_json_brings_back_an_equal_plan(facts, passed):
    plan = Plan("a+b", (LayerFacts("a", "x", "1", (1, 0), "ground"),),
                Device("toy", "Toy", "cpu", facts=Facts(facts)), MODEL, Mesh(2, 1), (),
                Facts(facts), (Row(NORM, (1, 9), "a", "k", passed_over=tuple(passed)),), ("m 1",))
    assert Plan.from_json(plan.to_json()) == plan


def test_an_edited_plan_is_refused():
    whole = json.loads(example().to_json())
    whole["rows"][0]["kernel"] = "other"
    with pytest.raises(DamagedPlan, match="its content makes"):
        Plan.from_json(json.dumps(whole))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"plan_id": "x", "platform": "a"}'])
def test_other_json_is_refused_in_words(text):
    with pytest.raises(DamagedPlan, match="not the JSON of a plan"):
        Plan.from_json(text)


def test_the_json_has_the_id_and_who_serves_every_row():
    whole = json.loads(example().to_json())
    assert whole["plan_id"] == example().id
    assert [row["served_by"] for row in whole["rows"]] == ["base:k", "base:k", "acme:big"]


def test_a_difference_names_the_place_and_both_sides():
    other = plan_of(floor("base", [kernel(NORM, "k")]), catalogue=ONE, borders=(16,),
                    modes={"batch_invariant": False})
    lines = diff(example(), other)
    assert "platform: acme+base | base" in lines
    assert "layer acme: toy-acme 0.1, interface 1.0, overlay | nothing" in lines
    assert "tensor.norm 257-8192: acme:big | nothing" in lines


def test_the_table_merges_adjacent_buckets_and_shows_reasons_and_eager_steps():
    expected = """\
platform  acme + base      device  Toy One, compute capability 9.0      model  toy
layers    acme (toy-acme 0.1, interface 1.0, overlay)
          base (toy-base 0.1, interface 1.0, ground)
modes     batch_invariant=False

operator     tokens    served by  graph   passed over
tensor.norm  1-256     base:k     eager   acme:big – offered from 257
                                          acme:odd – hidden must be odd
tensor.norm  257-8192  acme:big   replay  acme:odd – hidden must be odd
                                          base:k – lower layer
memory    total 8 GiB
          free 2 GiB
plan ID · 1 operators, 2 layers, 0 unverified, 0 reference"""
    plan = example(memory=("total 8 GiB", "free 2 GiB"))
    assert str(plan) == expected.replace("ID", plan.id)


def test_a_row_with_many_reasons_points_to_explain():
    others = [kernel(NORM, f"k{n}", supports=lambda p, n=n: no(f"reason {n}")) for n in range(5)]
    plan = plan_of(layer("acme", others), floor("base", [kernel(NORM, "k")]), catalogue=ONE)
    assert "acme:k0 – reason 0" in str(plan)
    assert "4 more: deepinfer explain tensor.norm" in str(plan)
    assert "reason 4" not in str(plan)
    assert "acme:k4: reason 4" in plan.explain(NORM)


def test_explain_shows_one_operator_in_full():
    text = example().explain(NORM)
    assert "1-256 tokens   base:k" in text
    assert "graph never: host waits" in text
    assert "passed over  acme:odd: hidden must be odd" in text


def test_explain_of_an_unknown_operator_shows_the_nearest():
    with pytest.raises(UsageError, match="did you mean tensor.norm"):
        example().explain("tensor.nrom")


def test_composed_operators_and_layouts_are_printed():
    base = floor("base", [kernel(WRITE, "w", layouts={"kv": "plain"}),
                          kernel(READ, "r", layouts={"kv": "plain"})])
    text = str(plan_of(base, catalogue=catalogue(WRITE, READ, FUSED)))
    assert "layouts   kv=plain" in text
    assert "attention.fused  1-8192  composed   –       –" in text


def test_a_layer_that_could_be_ground_but_is_not_is_listed_so():
    plan = plan_of(floor("left", [kernel(NORM, "k")]), floor("right"), catalogue=ONE)
    assert [one.role for one in plan.layers] == ["not ground", "ground"]
