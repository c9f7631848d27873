"""The switchboard: slots, choosers, packing, tracing, blame."""

from __future__ import annotations

import functools
import traceback
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import (
    FUSED,
    GROUPED,
    NORM,
    PERMUTE,
    READ,
    WRITE,
    Rows,
    build,
    catalogue,
    declared,
    floor,
    kernel,
    layer,
    plan_of,
    table_of,
)

from deepinfer.ops.table import KernelFailed, NoOperator, Table, TableSealed
from deepinfer.plugin import YES, no
from deepinfer.plugin.bind import bind
from deepinfer.plugin.failures import BadAnswer, BadKernel, DamagedPlan, HookFailed
from deepinfer.plugin.resolve import resolve

ONE = catalogue(NORM)


def saying(word):
    """A build whose kernel returns a word."""
    return lambda problem: lambda x, weight, eps=1e-6: word


def split(*starts, catalogue=ONE):
    """A table whose norm changes its kernel at these token counts."""
    ends = [start - 1 for start in starts[1:]] + [None]
    kernels = [
        kernel(NORM, f"from_{start}", tokens=(start, end), build=saying(start))
        for start, end in zip(starts, ends, strict=True)
    ]
    return table_of(floor("base", kernels), catalogue=catalogue, tokens=(1, 4096))


class Pair(NamedTuple):
    """A value of two tensors."""

    values: Rows
    scale: Rows | None = None


def test_a_slot_is_called_by_attribute_and_by_operator_name():
    table = split(1)
    assert table.tensor_norm(Rows(4, 8), Rows(8), 1e-6) == 1
    assert table["tensor.norm"](x=Rows(4, 8), weight=Rows(8)) == 1
    assert "tensor.norm" in table
    assert list(table) == [NORM]


def test_an_operator_without_a_slot_is_named_with_the_nearest():
    with pytest.raises(NoOperator, match="did you mean tensor.norm"):
        split(1)["tensor.nrom"]
    with pytest.raises(AttributeError, match="tensor_other"):
        split(1).tensor_other(1)


@given(st.lists(st.integers(2, 4096), max_size=5, unique=True), st.integers(0, 4096))
def test_a_chooser_picks_the_kernel_whose_range_holds_the_rows(borders, count):
    starts = [1, *sorted(borders)]
    table = split(*starts)
    expected = max(start for start in starts if start <= max(count, 1))
    assert table.tensor_norm(Rows(count, 8), None) == expected
    assert table.tensor_norm(x=Rows(count, 8), weight=None, eps=0.0) == expected
    assert table.at(NORM, count)(None, None) == expected


def test_a_chooser_counts_the_rows_of_the_first_tensor_of_a_pair():
    kernels = [
        kernel(PERMUTE, name, tokens=tokens, layouts={"rows": "a"},
               build=lambda problem, name=name: lambda x: name)
        for name, tokens in (("small", (1, 16)), ("large", (17, None)))
    ]
    table = table_of(floor("base", kernels), catalogue=catalogue(PERMUTE))
    assert table.tensor_permute(Pair(Rows(16, 4))) == "small"
    assert table.tensor_permute(Pair(Pair(Rows(17, 4)))) == "large"


def test_a_step_uses_the_kernels_of_its_own_tokens_whatever_rows_an_operator_gets():
    """Six experts a token: the expert operators see more rows than the step has tokens."""
    table = split(1, 17)
    assert table.step(16).tensor_norm(Rows(96, 8), None) == 1
    assert table.step(17).tensor_norm(Rows(2, 8), None) == 17
    assert table.step(16) is table.step(3)
    assert table.step(3).plan_id == table.plan_id
    with pytest.raises(TableSealed, match="cannot pack"):
        table.step(3).prepare(NORM, "w")


def test_a_step_is_traced_and_blamed_like_the_table():
    calls = []
    table = table_of(floor("base", [kernel(NORM, "k", build=failing)]), catalogue=ONE)
    with pytest.raises(KernelFailed, match="base:k"), table.blaming():
        table.step(3).tensor_norm(Rows(3, 8), None)
    fine = split(1, 17)
    with fine.traced(calls.append):
        fine.step(3).tensor_norm(Rows(3, 8), None)
    fine.step(3).tensor_norm(Rows(3, 8), None)
    assert [one.kernel for one in calls] == ["base:from_1"]


def test_a_kernel_that_serves_adjacent_buckets_is_built_once():
    built = []

    def counting(problem):
        built.append(problem.tokens)
        return build(problem)

    base = floor("base", [kernel(NORM, "k", build=counting)])
    table_of(base, catalogue=ONE, tokens=(1, 64), borders=(8, 16))
    assert built == [(1, 64)]


def test_an_optional_operator_is_called_only_where_a_kernel_serves_it():
    layouts = {"kv": "plain"}
    small = kernel(FUSED, "f", layouts=layouts, build=lambda problem: lambda q, cache: "fused",
                   supports=lambda p: YES if p.tokens[1] <= 16 else no("at most 16 rows"))
    base = [small, kernel(READ, "r", layouts=layouts), kernel(WRITE, "w", layouts=layouts)]
    table = table_of(floor("base", base), catalogue=catalogue(READ, WRITE, FUSED), borders=(16,))
    assert [table.serves(FUSED, tokens) for tokens in (1, 16, 17)] == [True, True, False]
    assert table.attention_fused(Rows(16, 4), None) == "fused"
    with pytest.raises(BadKernel, match="no kernel for 17-8192 tokens; ask table.serves"):
        table.attention_fused(Rows(17, 4), None)
    assert FUSED in table.step(16)
    assert FUSED not in table.step(17)
    assert not table_of(floor("base", base[1:]), catalogue=catalogue(READ, WRITE, FUSED)).serves(
        FUSED, 1)


def test_nothing_can_be_set_or_removed():
    table = split(1)
    with pytest.raises(TableSealed, match="tensor_norm cannot be set"):
        table.tensor_norm = print
    with pytest.raises(TableSealed, match="tensor_norm cannot be set"):
        del table.tensor_norm
    with pytest.raises(TableSealed, match="new cannot be set"):
        table.new = print


def test_weights_are_packed_by_the_kernel_that_serves_and_not_after_seal():
    def prepare(weight, problem):
        return f"{weight} packed for {problem.layouts['weights']}"

    base = floor("base", [
        kernel(GROUPED, "g", layouts={"weights": "k32", "rows": "a"}, prepare=prepare),
        kernel(NORM, "k"),
    ])
    table = table_of(base, catalogue=catalogue(GROUPED, NORM))
    assert table.prepare(GROUPED, "w") == "w packed for k32"
    assert table.prepare(NORM, "w") == "w"
    table.seal()
    assert table.is_sealed
    with pytest.raises(TableSealed, match="cannot pack"):
        table.prepare(GROUPED, "w")


def test_a_prepare_that_raises_is_named():
    def prepare(weight, problem):
        raise ValueError("odd rows")

    base = floor("base", [kernel(NORM, "k", prepare=prepare)])
    with pytest.raises(HookFailed, match="prepare of base:k for tensor.norm"):
        table_of(base, catalogue=ONE).prepare(NORM, "w")


def test_two_kernels_that_pack_one_weight_differently_are_refused():
    kernels = [kernel(NORM, "a", tokens=(1, 16), prepare=lambda weight, problem: weight),
               kernel(NORM, "b")]
    with pytest.raises(BadKernel, match="no kept layout kind"):
        table_of(floor("base", kernels), catalogue=ONE)


def test_the_workspace_is_the_largest_that_any_kernel_declares():
    base = floor("base", [
        kernel(NORM, "k", workspace=lambda problem: 10 * problem.tokens[1]),
        kernel(PERMUTE, "p", layouts={"rows": "a"}, workspace=lambda problem: 7),
    ])
    table = table_of(base, catalogue=catalogue(NORM, PERMUTE), tokens=(1, 64))
    assert table.workspace_bytes == 640


@pytest.mark.parametrize("nbytes", [-1, 1.5, None, True])
def test_a_workspace_must_be_a_number_of_bytes(nbytes):
    base = floor("base", [kernel(NORM, "k", workspace=lambda problem: nbytes)])
    with pytest.raises(BadAnswer, match="answer a number of bytes"):
        table_of(base, catalogue=ONE)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda p: None, "must return a callable"),
        (lambda p: lambda x, w: x, "does not fit tensor.norm"),
        (lambda p: lambda x, weight: x, "does not fit"),
        (lambda p: lambda x, weight, eps, stream: x, "stream"),
    ],
)
def test_what_is_built_must_take_the_operator_s_arguments(made, message):
    with pytest.raises(BadKernel, match=message):
        table_of(floor("acme", [kernel(NORM, "k", build=made)]), catalogue=ONE)


def test_a_build_that_raises_is_named_with_its_distribution():
    def broken(problem):
        raise ModuleNotFoundError("No module named 'acme_lib'")

    with pytest.raises(HookFailed, match=r"build of acme:k for tensor.norm from acme \(toy-acme"):
        table_of(floor("acme", [kernel(NORM, "k", build=broken)]), catalogue=ONE)


def test_a_plan_of_other_layers_cannot_be_bound():
    plan = plan_of(floor("one", [kernel(NORM, "k")]), catalogue=ONE)
    with pytest.raises(DamagedPlan, match="is for one, not for two"):
        bind(plan, declared(floor("two", [kernel(NORM, "k")]), catalogue=ONE), Table)
    with pytest.raises(DamagedPlan, match="base:gone, which no loaded layer declares"):
        gone = plan_of(floor("base", [kernel(NORM, "gone")]), catalogue=ONE)
        bind(gone, declared(floor("base", [kernel(NORM, "k")]), catalogue=ONE), Table)


def test_kernels_with_host_plans_keep_them_and_others_get_one_that_does_nothing():
    planned = []

    def with_plan(problem):
        run = build(problem)
        run.plan = planned.append
        return run

    base = floor("base", [kernel(NORM, "a", build=with_plan, tokens=(1, 16)), kernel(NORM, "b")])
    table = table_of(base, catalogue=ONE)
    table.at(NORM, 3).plan("meta")
    table.at(NORM, 300).plan("meta")
    table.at(NORM, 3).update("meta")
    assert planned == ["meta"]


def test_tracing_reports_every_call_and_leaves_nothing_behind():
    table, calls = split(1, 17), []
    before = table.tensor_norm
    with table.traced(calls.append):
        table.tensor_norm(Rows(20, 8), "w", eps=0.5)
        table.tensor_norm(Rows(2, 8), "w")
    table.tensor_norm(Rows(2, 8), "w")
    assert [(one.op, one.kernel, one.result) for one in calls] == [
        (NORM, "base:from_17", 17), (NORM, "base:from_1", 1)]
    assert calls[0].args[1:] == ("w", 0.5)
    assert calls[0].seconds >= 0
    assert table.tensor_norm(Rows(2, 8), "w") == before(Rows(2, 8), "w")
    assert table.at(NORM, 2).__code__.co_name == f"{NORM}[base:from_1]"


def failing(problem):
    """A build whose kernel raises deep inside."""

    def inner(rows):
        raise RuntimeError(f"{rows} rows")

    def run(x, weight, eps=1e-6):
        inner(x.shape[0])

    return run


class CallableKernel:
    """A kernel that is an object, not a function."""

    def __call__(self, x, weight, eps=1e-6):
        raise RuntimeError("inside an object")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (failing, "RuntimeError: 3 rows"),
        (lambda problem: CallableKernel(), "RuntimeError: inside an object"),
        (lambda problem: functools.partial(failing(problem)), "RuntimeError: 3 rows"),
    ],
)
def test_blame_finds_the_kernel_whatever_kind_of_callable_it_is(made, said):
    base = floor("base", [kernel(NORM, "k", build=made)])
    table = table_of(base, catalogue=ONE, tokens=(1, 64))
    with pytest.raises(KernelFailed) as error, table.blaming():
        table.tensor_norm(Rows(3, 8), Rows(8))
    assert said in str(error.value)
    assert "base:k (toy-base 0.1)" in str(error.value)
    assert "[3, 8]" in str(error.value)
    assert error.value.exit_code == 2


def test_two_operators_built_by_one_function_are_told_apart():
    base = floor("base", [kernel(NORM, "a", build=failing, tokens=(1, 16)),
                          kernel(NORM, "b", build=failing)])
    table = table_of(base, catalogue=ONE)
    for rows, name in ((3, "base:a"), (300, "base:b")):
        with pytest.raises(KernelFailed, match=name), table.blaming():
            table.tensor_norm(Rows(rows, 8), None)


def test_tracebacks_show_operator_and_kernel():
    table = table_of(floor("base", [kernel(NORM, "k", build=failing)]), catalogue=ONE)
    try:
        table.tensor_norm(Rows(3, 8), None)
    except RuntimeError as cause:
        assert f"in {NORM}[base:k]" in "".join(traceback.format_exception(cause))


def test_a_failure_outside_every_kernel_stays_as_it_is():
    table = split(1)
    with pytest.raises(ZeroDivisionError), table.blaming():
        raise ZeroDivisionError
    assert table.blame(ValueError("never raised")) is None


def test_a_kernel_failure_is_wrapped_once():
    table = table_of(floor("base", [kernel(NORM, "k", build=failing)]), catalogue=ONE)
    with pytest.raises(KernelFailed) as error, table.blaming(), table.blaming():
        table.tensor_norm(Rows(3, 8), None)
    assert isinstance(error.value.__cause__, RuntimeError)


def test_the_kernels_of_a_step_are_listed_with_their_graph_word():
    kernels = [kernel(NORM, "small", tokens=(1, 16), graph="update"),
               kernel(NORM, "large", graph="never: host waits")]
    known = declared(layer("acme", kernels), floor("base"), catalogue=ONE)
    table = bind(resolve(known), known, Table)
    assert table.kernels(3) == (("acme:small", "update"),)
    assert table.kernels(300) == (("acme:large", "never: host waits"),)
