"""The eight rules against silent fall-back, each with a small broken platform."""

from __future__ import annotations

import re

import pytest
from toy import (
    CATALOGUE,
    MODEL,
    NORM,
    READ,
    WRITE,
    Rows,
    build,
    catalogue,
    declared,
    distribution,
    floor,
    kernel,
    layer,
    plan_of,
    served,
    table_of,
)

from deepinfer.ops.table import KernelFailed
from deepinfer.plugin import YES, Facts, Layout, Mesh, Model, hookimpl, no, unverified
from deepinfer.plugin.failures import (
    BadAnswer,
    BadKernel,
    BadPlugin,
    HookFailed,
    NoAutomaticChoice,
    NoKernel,
    NoPlatform,
    PlanMismatch,
    Sealed,
    WrongInterface,
)
from deepinfer.plugin.find import Offer, installed, layer_of
from deepinfer.plugin.plan import agree
from deepinfer.plugin.resolve import resolve
from deepinfer.plugin.specs import FAMILY_HOOKS
from deepinfer.plugin.stack import load_platform

ONE = catalogue(NORM)


def refused(message: str, *layers, **options):
    """The error text of a plan that must not come about."""
    with pytest.raises((BadKernel, BadAnswer, HookFailed), match=message) as error:
        plan_of(*layers, catalogue=ONE, **options)
    return str(error.value)


# R1: a named platform that is missing, broken or of another interface is a stop


def test_r1_a_missing_platform_stops():
    with pytest.raises(NoPlatform, match="not_there is not installed"):
        load_platform("not_there+reference")


def test_r1_another_interface_stops():
    with pytest.raises(WrongInterface, match="fits 1.0"):
        layer("acme", DEEPINFER_API=(99, 0))


def test_r1_a_misspelt_hook_stops_and_shows_the_nearest():
    with pytest.raises(BadPlugin, match=r"deepinfer_gem.*did you mean deepinfer_gemm"):
        layer("acme", deepinfer_gem=lambda device, model: [])


def test_r1_an_argument_that_the_hook_does_not_offer_stops():
    with pytest.raises(BadPlugin, match="stream"):
        layer("acme", deepinfer_gemm=lambda device, model, stream: [])


def test_r1_a_hook_may_take_fewer_arguments_than_offered():
    acme = layer("acme", deepinfer_gemm=lambda model: [])
    assert acme.ask_all("deepinfer_gemm", device=None, model=MODEL) == []


@pytest.mark.parametrize("option", ["wrapper", "hookwrapper", "optionalhook", "tryfirst",
                                    "trylast"])
def test_r1_hooks_are_marked_plainly(option):
    def hook(device, model):
        yield

    hook.__name__ = "deepinfer_gemm"
    with pytest.raises(BadPlugin, match=f"hookimpl\\({option}\\); plain @hookimpl only"):
        layer("acme", deepinfer_gemm=hookimpl(**{option: True})(hook))


@pytest.mark.parametrize("option", ["firstresult", "historic"])
def test_r1_options_of_a_specification_do_not_exist_for_an_implementation(option):
    with pytest.raises(TypeError, match=option):
        hookimpl(**{option: True})


def test_r1_a_hook_without_its_mark_stops():
    made = layer("acme").module
    made.deepinfer_gemm = lambda device, model: []
    with pytest.raises(BadPlugin, match="write @hookimpl above it"):
        layer_of(made, Offer("acme", "toy_acme", "toy-acme", "0.1"))


def test_r1_a_hook_that_raises_while_yielding_is_named():
    def hook(device, model):
        yield kernel(NORM, "fine")
        raise ZeroDivisionError("cores is 0")

    with pytest.raises(HookFailed, match=r"deepinfer_tensor_ops of acme \(toy-acme 0.1\)") as error:
        plan_of(layer("acme", deepinfer_tensor_ops=hook), catalogue=ONE)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


# R2: auto never chooses between two (test_platform_strings.py has more)


def test_r2_auto_with_no_ground_names_the_reference(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    distribution(tmp_path, "overlay_only", "DEEPINFER_API = (1, 0)\n")
    offers = {"overlay_only": installed()["overlay_only"]}
    with pytest.raises(NoAutomaticChoice, match="--platform reference"):
        load_platform("auto", offers=offers)


# R3: an unserved operator is a stop with every candidate and reason


def test_r3_a_hole_lists_every_candidate_with_its_reason_and_what_to_do():
    upper = layer("acme", [kernel(NORM, "fast", supports=lambda p: no("needs 8 heads, has 4"))])
    lower = floor("base", [kernel(NORM, "slow", supports=lambda p: no("libbase is missing"))])
    with pytest.raises(NoKernel) as error:
        plan_of(upper, lower, catalogue=ONE, tokens=(1, 256))
    assert str(error.value) == (
        "no kernel for tensor.norm, 1-256 tokens\n"
        "  platform  acme + base      device  Toy One, compute capability 9.0\n"
        "  acme:fast    no: needs 8 heads, has 4\n"
        "  base:slow    no: libbase is missing\n"
        "Install one of them, add a layer that serves it, "
        "or name the eager one: acme+base+reference"
    )
    assert error.value.holes[0]["op"] == NORM
    assert error.value.exit_code == 2


def test_r3_all_holes_are_reported_at_once():
    with pytest.raises(NoKernel) as error:
        plan_of(floor("base"), catalogue=catalogue(NORM, WRITE, READ))
    assert [hole["op"] for hole in error.value.holes] == [NORM, WRITE, READ]
    assert "no layer declares one" in str(error.value)


def test_r3_a_hole_in_one_bucket_only_is_a_hole():
    some = kernel(NORM, "small", supports=lambda p: YES if p.tokens[1] <= 16 else no("at most 16"))
    with pytest.raises(NoKernel, match="17-64 tokens"):
        plan_of(floor("base", [some]), catalogue=ONE, tokens=(1, 64), borders=(16, 32))


# R4: the reference serves only if it is named


def test_r4_nothing_adds_a_reference_that_was_not_written():
    with pytest.raises(NoKernel) as error:
        plan_of(floor("base"), catalogue=ONE)
    assert "base+reference" in str(error.value)


# R5: a kernel that raises while serving is not replaced


def test_r5_a_kernel_that_raises_is_named_with_everything_and_nobody_steps_in():
    def broken(problem):
        def run(x, weight, eps=1e-6):
            raise RuntimeError("illegal address")

        return run

    used = []
    spare = kernel(NORM, "spare", build=lambda p: lambda x, weight, eps=1e-6: used.append(x))
    upper = layer("acme", [kernel(NORM, "fast", build=broken)])
    table = table_of(upper, floor("base", [spare]), catalogue=ONE, tokens=(1, 64))
    with pytest.raises(KernelFailed) as error, table.blaming():
        table.tensor_norm(Rows(3, 256), Rows(256), 1e-20)
    text = str(error.value)
    for part in ("tensor.norm failed in acme:fast (toy-acme 0.1)", table.plan_id,
                 "RuntimeError: illegal address", "x [3, 256], weight [256], eps 1e-20"):
        assert part in text
    assert isinstance(error.value.__cause__, RuntimeError)
    assert used == []


# R6: what a library chose by itself is reported and printed


def test_r6_a_kernel_says_what_its_library_became_and_the_plan_prints_it():
    def automatic(problem):
        run = build(problem)
        run.became = "cutlass_v3"
        return run

    base = floor("base", [kernel(NORM, "auto_tuned", build=automatic)])
    plan, table = plan_of(base, catalogue=ONE), table_of(base, catalogue=ONE)
    printed = plan.with_became(table.became)
    assert "base:auto_tuned (cutlass_v3)" in str(printed)
    assert printed.id == plan.id


# R7: unverified kernels bind only when allowed, and carry a mark


def test_r7_an_unverified_kernel_is_refused_with_its_reason():
    doubtful = kernel(NORM, "new", supports=lambda p: unverified("not run on hardware"))
    with pytest.raises(NoKernel, match=r"unverified: not run on hardware \(allow_unverified"):
        plan_of(floor("base", [doubtful]), catalogue=ONE)


def test_r7_an_allowed_unverified_kernel_carries_a_mark_in_every_table():
    doubtful = kernel(NORM, "new", supports=lambda p: unverified("not run on hardware"))
    plan = plan_of(floor("base", [doubtful]), catalogue=ONE, allow_unverified=True)
    assert served(plan, NORM) == [((1, 8192), "base:new?")]
    assert "base:new?" in str(plan)
    assert "1 unverified" in str(plan)
    assert "unverified: not run on hardware" in plan.explain(NORM)
    assert '"served_by": "base:new?"' in plan.to_json()


# R8: all ranks have one plan


def test_r8_ranks_with_one_plan_agree_whatever_their_rank():
    plans = [
        plan_of_rank(rank, [kernel(NORM, "k")])
        for rank in range(3)
    ]
    assert agree(plans) == plans[0].id


def test_r8_a_rank_with_another_kernel_stops_the_start_with_the_difference():
    plans = [plan_of_rank(0, [kernel(NORM, "k")]), plan_of_rank(1, [kernel(NORM, "other")])]
    with pytest.raises(PlanMismatch) as error:
        agree(plans)
    assert "tensor.norm 1-8192: base:k | base:other" in str(error.value)
    assert "rank 1" in str(error.value)


def plan_of_rank(rank, kernels):
    """The plan as one of three ranks makes it."""
    return resolve(declared(floor("base", kernels), catalogue=ONE, mesh=Mesh(3, rank)))


# answers and declarations


@pytest.mark.parametrize("answer", [True, False, None, "yes", NotImplemented])
def test_an_answer_that_is_none_of_the_three_is_refused_with_its_name(answer):
    text = refused("answer YES", floor("acme", [kernel(NORM, "fast", supports=lambda p: answer)]))
    assert re.match(
        r"acme:fast \(tensor.norm, 1-8192 tokens\) from acme \(toy-acme 0.1\) returned "
        rf"{re.escape(repr(answer))}; answer YES, no\(\.\.\.\) or unverified\(\.\.\.\)", text
    )


def test_a_refusal_needs_a_reason():
    for answer in (no, unverified):
        with pytest.raises(ValueError, match="needs a reason in words"):
            answer("  ")


def test_supports_that_raises_is_named():
    def supports(problem):
        return YES if problem.dims["page_size"] else no("pages")

    text = refused("KeyError", floor("acme", [kernel(NORM, "fast", supports=supports)]))
    assert "supports of acme:fast (tensor.norm, 1-8192 tokens)" in text


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (kernel("tensor.nrom", "k", build=str), "did you mean tensor.norm"),
        (kernel(NORM, "Fast"), "lower-case letters"),
        (kernel(NORM, "k", tokens=(0, 4)), "first at least 1"),
        (kernel(NORM, "k", tokens=(5, 4)), r"tokens=\(5, 4\)"),
        (kernel(NORM, "k", graph="never"), "never: reason"),
        (kernel(NORM, "k", graph="sometimes"), "graph='sometimes'"),
        (kernel(NORM, "k", layouts={"kv": "plain"}), "names kv, which the operator does not touch"),
        (kernel(NORM, "k", supports=None), "supports must be a function"),
        (kernel(NORM, "k", workspace=64), "workspace must be a function or None"),
        (kernel(NORM, "k", batch_invariant="yes"), "batch_invariant must be True or False"),
        ("tensor.norm", r"yield Kernel\(\.\.\.\) objects"),
    ],
)
def test_a_kernel_that_breaks_the_contract_is_refused_in_words(bad, message):
    assert "acme (toy-acme 0.1)" in refused(message, floor("acme", [bad]))


def test_a_kernel_must_state_every_layout_its_operator_touches():
    with pytest.raises(BadKernel, match="which layout of kv it uses"):
        declared(floor("acme", [kernel(READ, "k")]))


def test_one_name_twice_for_one_operator_is_refused():
    refused("declares acme:k for tensor.norm twice",
            floor("acme", [kernel(NORM, "k"), kernel(NORM, "k")]))


def test_a_kernel_belongs_to_the_hook_of_its_family():
    wrong = layer("acme", deepinfer_gemm=lambda device, model: [kernel(NORM, "k")])
    refused("belongs to deepinfer_tensor_ops", wrong)


def test_a_hook_that_returns_one_kernel_instead_of_yielding_is_refused():
    bad = layer("acme", deepinfer_tensor_ops=lambda device, model: kernel(NORM, "k"))
    with pytest.raises(BadPlugin, match="yield each one instead"):
        plan_of(bad, catalogue=ONE)


def test_two_layouts_under_one_name_are_refused():
    ours, theirs = (Layout("packed", records=lambda dims, n=n: {}) for n in (1, 2))
    layers = [layer("a", [kernel(READ, "k", layouts={"kv": ours})]),
              layer("b", [kernel(READ, "k", layouts={"kv": theirs})])]
    with pytest.raises(BadKernel, match=r"brought by a:k and, differently, by b:k"):
        declared(*layers)


def test_nothing_registers_after_the_start():
    known = declared(floor("base", [kernel(NORM, "k")]), catalogue=ONE)
    known.platform.seal()
    with pytest.raises(Sealed, match="late tried to register"):
        known.platform.layers[0].manager.register(object(), "late")


def test_a_model_that_does_not_state_a_needed_number_is_an_error():
    bare = Model("bare", Facts())
    with pytest.raises(BadKernel, match="asks for the dims hidden"):
        resolve(declared(floor("base", [kernel(NORM, "k")]), catalogue=ONE, model=bare))


def test_every_toy_operator_has_a_family_hook():
    assert {one.family for one in CATALOGUE.operators.values()} <= set(FAMILY_HOOKS)
