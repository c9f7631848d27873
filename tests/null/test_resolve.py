"""Who serves what: order, offers, buckets, layouts, overrides, modes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import (
    FUSED,
    GROUPED,
    NORM,
    PERMUTE,
    READ,
    REDUCE,
    WRITE,
    catalogue,
    declared,
    floor,
    kernel,
    layer,
    plan_of,
    reasons,
    served,
)

from deepinfer.plugin import YES, Layout, Mesh, Record, no, unverified
from deepinfer.plugin.failures import BadOverride, HookFailed, NoKernel, NoLayout
from deepinfer.plugin.resolve import resolve
from deepinfer.plugin.verdicts import cut

ONE = catalogue(NORM)
CACHE = catalogue(WRITE, READ)
EXPERTS = catalogue(PERMUTE, GROUPED)


def refuses(reason="cannot"):
    """A `supports` that says no."""
    return lambda problem: no(reason)


def up_to(tokens):
    """A `supports` that can do small steps only."""
    return lambda problem: YES if problem.tokens[1] <= tokens else no(f"at most {tokens} rows")


def kv(op, name, layout, **more):
    """A kernel on the cache."""
    return kernel(op, name, layouts={"kv": layout}, **more)


def ffn(op, name, rows, weights="k32", **more):
    """A kernel on rows of experts."""
    layouts = {"rows": rows} | ({"weights": weights} if op == GROUPED else {})
    return kernel(op, name, layouts=layouts, **more)


# order


def test_the_left_layer_serves_and_the_right_one_says_it_is_lower():
    plan = plan_of(layer("acme", [kernel(NORM, "k")]), floor("base", [kernel(NORM, "k")]),
                   catalogue=ONE)
    assert served(plan, NORM) == [((1, 8192), "acme:k")]
    assert reasons(plan, NORM) == {"base:k": "lower layer"}


def test_inside_a_layer_the_first_yielded_serves():
    plan = plan_of(floor("base", [kernel(NORM, "one"), kernel(NORM, "two")]), catalogue=ONE)
    assert served(plan, NORM) == [((1, 8192), "base:one")]
    assert reasons(plan, NORM) == {"base:two": "declared later"}


def test_a_kernel_that_says_no_is_passed_over_with_its_reason():
    upper = layer("acme", [kernel(NORM, "k", supports=refuses("hidden must be 128, got 200"))])
    plan = plan_of(upper, floor("base", [kernel(NORM, "k")]), catalogue=ONE)
    assert served(plan, NORM) == [((1, 8192), "base:k")]
    assert reasons(plan, NORM) == {"acme:k": "hidden must be 128, got 200"}


# buckets and offers


def test_an_offer_is_taste_and_cuts_the_buckets():
    upper = layer("acme", [kernel(NORM, "big", tokens=(257, None))])
    plan = plan_of(upper, floor("base", [kernel(NORM, "k")]), catalogue=ONE)
    assert served(plan, NORM) == [((1, 256), "base:k"), ((257, 8192), "acme:big")]
    assert reasons(plan, NORM) == {"acme:big": "offered from 257"}


def test_a_kernel_serves_outside_its_offer_before_anything_is_left_unserved():
    """Ability is not taste: without the lower layer the plan must still be whole."""
    plan = plan_of(floor("acme", [kernel(NORM, "big", tokens=(257, None))]), catalogue=ONE)
    assert served(plan, NORM) == [((1, 256), "acme:big"), ((257, 8192), "acme:big")]
    assert plan.rows[0].note == "offered from 257; here because no other is willing"
    assert "no other is willing" in str(plan)


def test_every_kernel_is_asked_once_per_bucket_with_its_own_layouts():
    asked = []

    def supports(problem):
        asked.append((problem.tokens, dict(problem.layouts), problem.dims["hidden"]))
        return YES

    base = floor("base", [kv(READ, "r", "plain", supports=supports), kv(WRITE, "w", "plain")])
    plan_of(base, catalogue=CACHE, tokens=(1, 64), borders=(16,))
    assert asked == [((1, 16), {"kv": "plain"}, 256), ((17, 64), {"kv": "plain"}, 256)]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=4),
    st.lists(st.integers(0, 400), max_size=4),
    st.integers(1, 350),
)
def test_buckets_tile_the_range_and_no_offer_ends_inside_one(offers, borders, last):
    kernels = [
        kernel(NORM, f"k{place}", tokens=(low, low + more))
        for place, (low, more) in enumerate(offers)
    ]
    buckets = cut(declared(floor("base", kernels), catalogue=ONE), (1, last), borders)
    assert buckets[0][0] == 1
    assert buckets[-1][1] == last
    assert all(a[1] + 1 == b[0] for a, b in pairwise(buckets))
    for low, high in buckets:
        assert low <= high
        for first, more in offers:
            assert high < first or low > first + more or first <= low <= high <= first + more


# layouts


def test_a_reader_whose_cache_nobody_can_write_is_passed_over_for_its_second_kernel():
    """Case of the prototype: the overlay's first decode kernel uses a cache no writer has."""
    upper = layer("acme", [kv(READ, "fast", "bf16"), kv(READ, "second", "packed")])
    base = floor("base", [kv(WRITE, "w", "packed"), kv(READ, "r", "packed")])
    plan = plan_of(upper, base, catalogue=CACHE)
    assert served(plan, READ) == [((1, 8192), "acme:second")]
    assert served(plan, WRITE) == [((1, 8192), "base:w")]
    assert reasons(plan, READ)["acme:fast"] == "kv layout bf16, plan uses packed"
    assert [(one.kind, one.layout) for one in plan.layouts] == [("kv", "packed")]


def test_a_writer_of_another_layout_steps_back_even_in_a_higher_layer():
    upper = layer("acme", [kv(WRITE, "w", "bf16")])
    base = floor("base", [kv(WRITE, "w", "packed"), kv(READ, "r", "packed")])
    plan = plan_of(upper, base, catalogue=CACHE)
    assert served(plan, WRITE) == [((1, 8192), "base:w")]
    assert reasons(plan, WRITE) == {"acme:w": "kv layout bf16, plan uses packed"}


def test_a_kept_layout_must_be_served_in_every_bucket():
    upper = layer("acme", [kv(READ, "r", "fast"), kv(WRITE, "w", "fast", supports=up_to(16))])
    base = floor("base", [kv(WRITE, "w", "plain"), kv(READ, "r", "plain")])
    plan = plan_of(upper, base, catalogue=CACHE, tokens=(1, 64), borders=(16,))
    assert [(one.tokens, one.layout) for one in plan.layouts] == [((1, 64), "plain")]


def test_a_passing_layout_may_differ_from_bucket_to_bucket():
    upper = layer("acme", [ffn(GROUPED, "masked", "masked", tokens=(1, 16), supports=up_to(16)),
                           ffn(PERMUTE, "mask", "masked")])
    base = floor("base", [ffn(GROUPED, "sorted", "sorted"), ffn(PERMUTE, "sort", "sorted")])
    plan = plan_of(upper, base, catalogue=EXPERTS, tokens=(1, 64))
    assert served(plan, GROUPED) == [((1, 16), "acme:masked"), ((17, 64), "base:sorted")]
    assert served(plan, PERMUTE) == [((1, 16), "acme:mask"), ((17, 64), "base:sort")]
    assert "rows=masked|sorted" in str(plan)
    assert [(o.tokens, o.layout) for o in plan.layouts if o.kind == "rows"] == [
        ((1, 16), "masked"), ((17, 64), "sorted")]


def test_a_passing_layout_prefers_kernels_that_are_offered_in_the_bucket():
    upper = layer("acme", [ffn(GROUPED, "big", "packed", tokens=(17, None)),
                           ffn(PERMUTE, "pack", "packed")])
    base = floor("base", [ffn(GROUPED, "sorted", "sorted"), ffn(PERMUTE, "sort", "sorted")])
    plan = plan_of(upper, base, catalogue=EXPERTS, tokens=(1, 64))
    assert served(plan, GROUPED) == [((1, 16), "base:sorted"), ((17, 64), "acme:big")]


def test_kept_layouts_are_settled_before_passing_ones():
    upper = layer("acme", [ffn(GROUPED, "odd", "sorted", weights="odd"),
                           ffn(GROUPED, "even", "masked", weights="k32")])
    base = floor("base", [ffn(PERMUTE, "sort", "sorted"), ffn(PERMUTE, "mask", "masked")])
    plan = plan_of(upper, base, catalogue=EXPERTS, tokens=(1, 64))
    assert {one.kind: one.layout for one in plan.layouts} == {"weights": "odd", "rows": "sorted"}
    assert reasons(plan, GROUPED) == {"acme:even": "weights layout k32, plan uses odd"}


def test_no_common_layout_is_an_error_that_shows_both_sides():
    base = floor("base", [kv(READ, "r", "packed"), kv(WRITE, "w", "plain")])
    with pytest.raises(NoLayout) as error:
        plan_of(base, catalogue=CACHE)
    text = str(error.value)
    assert "no layout of kv is served by every operator that touches it, 1-8192 tokens" in text
    assert "packed               no kernel for attention.write (1-8192 tokens)" in text
    assert "base:w uses plain, yes" in text


def test_an_unwilling_writer_of_the_right_layout_does_not_count():
    base = floor("base", [kv(READ, "fast", "packed"), kv(READ, "r", "plain"),
                          kv(WRITE, "w", "packed", supports=refuses()), kv(WRITE, "v", "plain")])
    assert served(plan_of(base, catalogue=CACHE), READ) == [((1, 8192), "base:r")]


def test_a_plugin_may_bring_a_layout_that_the_catalogue_does_not_know():
    packed = Layout("acme_packed", lambda dims: {"entry": Record("uint8", dims["hidden"])})
    base = floor("base", [kv(READ, "r", packed), kv(WRITE, "w", "acme_packed")])
    known = declared(base, catalogue=CACHE)
    plan = resolve(known)
    assert plan.layouts[0].layout == "acme_packed"
    assert known.layout("kv", "acme_packed").records({"hidden": 8}) == {"entry": Record("uint8", 8)}
    assert known.layout("kv", "plain").records is None


# optional operators and ranks


def test_an_optional_operator_without_a_kernel_is_composed():
    base = [kv(WRITE, "w", "plain"), kv(READ, "r", "plain")]
    plan = plan_of(floor("base", base), catalogue=catalogue(WRITE, READ, FUSED))
    assert served(plan, FUSED) == [((1, 8192), "composed")]
    assert "composed of attention.write, attention.read" in plan.explain(FUSED)


def test_a_fused_kernel_of_another_layout_never_decides_the_layout():
    upper = layer("acme", [kv(FUSED, "f", "odd")])
    base = floor("base", [kv(WRITE, "w", "plain"), kv(READ, "r", "plain")])
    plan = plan_of(upper, base, catalogue=catalogue(WRITE, READ, FUSED))
    assert served(plan, FUSED) == [((1, 8192), "composed")]
    assert reasons(plan, FUSED) == {"acme:f": "kv layout odd, plan uses plain"}


def test_one_rank_needs_no_exchange_and_two_do():
    both = catalogue(NORM, REDUCE)
    plan = plan_of(floor("base", [kernel(NORM, "k")]), catalogue=both)
    assert {row.op for row in plan.rows} == {NORM}
    with pytest.raises(NoKernel, match="all_to_all.reduce"):
        resolve(declared(floor("base", [kernel(NORM, "k")]), catalogue=both, mesh=Mesh(2)))


def test_one_rank_does_not_even_ask_who_moves_rows_between_ranks():
    base = floor("base", [kernel(NORM, "k")])
    upper = layer("acme", deepinfer_all_to_all=lambda device, model, mesh: 1 / 0)
    assert served(plan_of(upper, base, catalogue=ONE), NORM)
    with pytest.raises(HookFailed, match="deepinfer_all_to_all of acme"):
        declared(upper, base, catalogue=ONE, mesh=Mesh(2))


# overrides


def test_an_override_forces_a_kernel_of_a_lower_layer():
    layers = layer("acme", [kernel(NORM, "k")]), floor("base", [kernel(NORM, "k")])
    plan = plan_of(*layers, catalogue=ONE, ops={NORM: "base:k"})
    assert served(plan, NORM) == [((1, 8192), "base:k")]
    assert reasons(plan, NORM) == {"acme:k": "ops names base:k"}


def test_a_forced_kernel_that_says_no_is_an_error_with_its_reason():
    layers = (layer("acme", [kernel(NORM, "k", supports=refuses("no tensor cores"))]),
              floor("base", [kernel(NORM, "k")]))
    with pytest.raises(BadOverride, match="it says no: no tensor cores"):
        plan_of(*layers, catalogue=ONE, ops={NORM: "acme:k"})


def test_a_forced_reader_brings_its_layout_along():
    base = floor("base", [kv(READ, "fast", "packed"), kv(READ, "r", "plain"),
                          kv(WRITE, "w", "packed"), kv(WRITE, "v", "plain")])
    plan = plan_of(base, catalogue=CACHE, ops={READ: "base:r"})
    assert served(plan, WRITE) == [((1, 8192), "base:v")]


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ({"tensor.nrom": "base:k"}, "did you mean tensor.norm"),
        ({NORM: "base:kk"}, r"did you mean base:k\?.*Declared: base:k"),
        ({NORM: "k"}, "no layer declares it"),
    ],
)
def test_an_override_that_names_nothing_shows_the_nearest(ops, message):
    with pytest.raises(BadOverride, match=message):
        plan_of(floor("base", [kernel(NORM, "k")]), catalogue=ONE, ops=ops)


# modes


def test_batch_invariant_mode_refuses_kernels_that_do_not_promise_it():
    layers = (layer("acme", [kernel(NORM, "split")]),
              floor("base", [kernel(NORM, "steady", batch_invariant=True)]))
    plan = plan_of(*layers, catalogue=ONE, modes={"batch_invariant": True})
    assert served(plan, NORM) == [((1, 8192), "base:steady")]
    assert reasons(plan, NORM)["acme:split"].startswith("not batch-invariant")
    assert served(plan_of(*layers, catalogue=ONE), NORM) == [((1, 8192), "acme:split")]


def test_modes_travel_in_every_problem():
    seen = []

    def supports(problem):
        seen.append(problem.modes["graph"])
        return YES

    plan_of(floor("base", [kernel(NORM, "k", supports=supports)]), catalogue=ONE,
            modes={"graph": True})
    assert seen == [True]


def test_an_unverified_kernel_is_chosen_in_its_place_when_allowed():
    layers = (layer("acme", [kernel(NORM, "new", supports=lambda p: unverified("not run"))]),
              floor("base", [kernel(NORM, "k")]))
    assert served(plan_of(*layers, catalogue=ONE), NORM) == [((1, 8192), "base:k")]
    allowed = plan_of(*layers, catalogue=ONE, allow_unverified=True)
    assert served(allowed, NORM) == [((1, 8192), "acme:new?")]


LAYOUT = st.sampled_from(["a", "b", "c"])


@given(
    st.lists(LAYOUT, min_size=1, max_size=3, unique=True),
    st.lists(LAYOUT, min_size=1, max_size=3, unique=True),
)
def test_a_plan_never_mixes_a_writer_of_one_layout_with_a_reader_of_another(readers, writers):
    base = floor("base", [kv(READ, f"r_{x}", x) for x in readers]
                 + [kv(WRITE, f"w_{x}", x) for x in writers])
    if not set(readers) & set(writers):
        with pytest.raises(NoLayout):
            plan_of(base, catalogue=CACHE)
        return
    plan = plan_of(base, catalogue=CACHE)
    first = next(x for x in readers if x in writers)
    assert served(plan, READ)[0][1] == f"base:r_{first}"
    assert served(plan, WRITE)[0][1] == f"base:w_{first}"
