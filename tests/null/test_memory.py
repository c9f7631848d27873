"""Named arenas, the printed budget, memory of the reference, offers of memory and graphs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import DEVICE, floor, layer

from deepinfer.errors import MemoryShort
from deepinfer.plugin import Memory, Mesh
from deepinfer.plugin.failures import ArenaError, BadAnswer, NoMemoryLayer
from deepinfer.plugin.graphs import willing
from deepinfer.plugin.memory import ARENAS, MEMBERS, Arenas, Budget, fit, words
from deepinfer.plugin.offers import choose_graphs, choose_memory
from deepinfer.plugin.stack import Platform

GIB = 1 << 30


def arenas(total=16 * GIB, free=12 * GIB):
    """Accounting of a toy device."""
    return Arenas(lambda: (total, free))


def test_an_arena_takes_its_bytes_from_what_was_free():
    memory = arenas()
    memory.reserve("weights", 9 * GIB)
    assert memory.budget() == Budget(16 * GIB, 3 * GIB, {"weights": 9 * GIB})


def test_an_arena_is_reserved_once_and_never_grows():
    memory = arenas()
    memory.reserve("kv", GIB)
    for nbytes in (GIB, 2 * GIB):
        with pytest.raises(ArenaError, match="arena kv already holds 1.00 GiB .* never grows"):
            memory.reserve("kv", nbytes)


@pytest.mark.parametrize(("name", "nbytes"), [("cache", 8), ("", 8), ("kv", -1)])
def test_an_arena_has_a_known_name_and_a_size(name, nbytes):
    with pytest.raises(ArenaError):
        arenas().reserve(name, nbytes)


def test_what_does_not_fit_is_refused_with_the_arithmetic():
    memory = arenas()
    memory.reserve("weights", 9 * GIB)
    with pytest.raises(MemoryShort) as error:
        memory.reserve("kv", 5 * GIB)
    assert str(error.value).startswith(
        "memory is short by 2.00 GiB: 3.00 GiB free of 16.00 GiB - kv 5.00 GiB = -2.00 GiB "
        "(weights 9.00 GiB are held already)"
    )
    assert memory.budget().held == {"weights": 9 * GIB}


def test_the_budget_is_printed_before_anything_is_loaded():
    lines = fit(Budget(16 * GIB, 12 * GIB), {"weights": 9 * GIB, "kv": GIB})
    assert lines == (
        "memory        16.00 GiB",
        "weights        9.00 GiB",
        "kv             1.00 GiB",
        "other          4.00 GiB",
        "free           2.00 GiB",
    )


@given(st.lists(st.sampled_from(ARENAS), unique=True), st.integers(0, 1000), st.integers(0, 9000))
def test_nobody_ever_holds_more_than_was_free(names, size, free):
    memory = arenas(10_000, free)
    for name in names:
        try:
            memory.reserve(name, size)
        except MemoryShort:
            assert memory.budget().free < size
    budget = memory.budget()
    assert budget.free >= 0
    assert sum(budget.held.values()) + budget.free == free


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (1 << 50, "1024.00 TiB")]
)
def test_bytes_are_printed_for_people(nbytes, text):
    assert words(nbytes) == text


# the reference's memory


def cpu(total=4 * GIB, free=GIB):
    """Memory of the reference platform with a measured size of our choice."""
    from deepinfer.reference.memory import CpuMemory

    return CpuMemory(lambda: (total, free))


def test_the_reference_offers_a_memory():
    assert isinstance(cpu(), Memory)
    assert all(hasattr(cpu(), member) for member in MEMBERS)


def test_views_of_an_arena_share_its_fixed_address():
    import torch

    memory = cpu()
    block = memory.arena("kv", 4096)
    whole = memory.view("kv", 0, (32, 32), torch.float32)
    part = memory.view("kv", 256, (2, 32), torch.bfloat16)
    part.fill_(3.0)
    assert block.data_ptr() % 256 == 0
    assert whole.data_ptr() == block.data_ptr()
    assert part.data_ptr() == block.data_ptr() + 256
    assert whole.view(torch.bfloat16).flatten()[128:192].eq(3.0).all()


def test_a_view_outside_its_arena_or_off_the_grid_is_refused():
    import torch

    memory = cpu()
    memory.arena("kv", 64)
    with pytest.raises(ArenaError, match="bytes 32 to 96 lie outside arena kv of 64 bytes"):
        memory.view("kv", 32, (16,), torch.float32)
    with pytest.raises(ArenaError, match="no multiple of 4"):
        memory.view("kv", 2, (4,), torch.float32)
    with pytest.raises(ArenaError, match="state was never reserved; reserved: kv"):
        memory.view("state", 0, (1,), torch.uint8)


def test_an_arena_that_does_not_fit_is_refused_before_it_is_touched():
    with pytest.raises(MemoryShort, match="short by"):
        cpu().arena("weights", 2 * GIB)


def test_several_ranks_on_cpus_have_no_exchange_memory():
    from deepinfer.reference.memory import NoExchange

    assert cpu().exchange(64, Mesh()).numel() == 64
    with pytest.raises(NoExchange, match="2 ranks on CPUs"):
        cpu().exchange(64, Mesh(2))


def test_scratch_and_host_memory_work_on_a_cpu():
    memory = cpu()
    block = memory.host(100)
    with memory.scratch():
        assert memory.register(block) is block
    assert block.numel() == 100


def test_available_memory_is_read_from_the_system_and_falls_back(tmp_path):
    from deepinfer.reference.memory import measure

    table = tmp_path / "meminfo"
    table.write_text("MemTotal:  2000 kB\nMemFree:  100 kB\nMemAvailable:  1500 kB\n")
    assert measure(table, tmp_path) == (2000 * 1024, 1500 * 1024)
    total, free = measure(tmp_path / "missing", tmp_path)
    assert 0 < free <= total


def test_the_limit_of_a_container_counts(tmp_path):
    from deepinfer.reference.memory import measure

    table = tmp_path / "meminfo"
    table.write_text("MemTotal:  2000 kB\nMemAvailable:  1500 kB\n")
    (tmp_path / "memory.max").write_text(f"{1000 * 1024}\n")
    (tmp_path / "memory.current").write_text(f"{300 * 1024}\n")
    assert measure(table, tmp_path) == (1000 * 1024, 700 * 1024)
    (tmp_path / "memory.max").write_text("max\n")
    assert measure(table, tmp_path) == (2000 * 1024, 1500 * 1024)


# who offers memory and graphs


class Bare:
    """Memory that lacks almost everything."""

    def budget(self):
        """Nothing."""


class Capture:
    """Graphs, in shape only."""

    warmups = 1

    def can_capture(self, kernels):
        """The usual answer."""
        return willing(kernels)

    def capture(self, step, arena):
        """Runs the step."""
        return step()


def test_the_first_layer_that_offers_memory_wins_and_the_others_are_listed():
    mine = cpu()
    platform = Platform((
        layer("shy", deepinfer_memory=lambda device: None),
        layer("acme", deepinfer_memory=lambda device: mine),
        layer("base", deepinfer_memory=lambda device: cpu()),
    ))
    offered = choose_memory(platform, DEVICE)
    assert offered.value is mine
    assert (offered.layer, offered.others) == ("acme", ("base",))


def test_bl_89_memory_without_its_members_is_refused_and_none_at_all_too():
    bare = layer("acme", deepinfer_memory=lambda device: Bare())
    with pytest.raises(BadAnswer, match="Bare without arena, view, host"):
        choose_memory(Platform((bare,)), DEVICE)
    with pytest.raises(NoMemoryLayer, match="no layer of base offers memory"):
        choose_memory(Platform((floor("base"),)), DEVICE)


def test_graphs_are_optional():
    assert choose_graphs(Platform((floor("base"),)), DEVICE, cpu()) is None
    able = layer("acme", deepinfer_graphs=lambda device, memory: Capture())
    assert choose_graphs(Platform((able,)), DEVICE, cpu()).layer == "acme"


def test_a_step_with_a_kernel_that_never_captures_is_not_captured_and_says_which():
    answer = willing([("a:x", "replay"), ("b:y", "never: host waits"), ("c:z", "update")])
    assert str(answer) == "no: b:y (host waits)"
    assert willing([("a:x", "replay")]).kind == "yes"
