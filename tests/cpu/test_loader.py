"""The checked loader: whatever is wrong with a folder is found, named, and nothing is loaded."""

from __future__ import annotations

import io
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from deepinfer.errors import ModelError
from deepinfer.model.locate import DiskShort, ModelNotFound, find_model
from deepinfer.model.progress import loading_bar
from deepinfer.model.shape import Shape
from deepinfer.model.shards import DamagedCheckpoint, check, write_sums
from deepinfer.model.weights import Checkpoint

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny_a"
TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"
SHARD, OTHER = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"
Damage = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "model"
    shutil.copytree(GOLDEN, target, ignore=shutil.ignore_patterns("expected*", "spread*"))
    return target


def header(path: Path) -> tuple[dict, bytes]:
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def rewrite(path: Path, head: dict, data: bytes) -> None:
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def cut(count: int) -> Damage:
    return lambda at: (at / SHARD).write_bytes((at / SHARD).read_bytes()[:-count])


def edit_header(change: Callable[[dict], None]) -> Damage:
    def damage(at: Path) -> None:
        head, data = header(at / SHARD)
        change(head)
        rewrite(at / SHARD, head, data)

    return damage


def edit_index(change: Callable[[dict], object]) -> Damage:
    def damage(at: Path) -> None:
        index = json.loads((at / INDEX).read_text())
        change(index)
        (at / INDEX).write_text(json.dumps(index))

    return damage


def edit_tensors(change: Callable[[dict], object], shard: str | None = None) -> Damage:
    """Rewrites a shard with other tensors; index and headers then agree or not, as changed."""

    def damage(at: Path) -> None:
        for path in sorted(at.glob("*.safetensors")):
            if shard is None or path.name == shard:
                tensors = load_file(path)
                change(tensors)
                save_file(tensors, path)

    return damage


def drop(name: str) -> Damage:
    """A tensor that neither the shard nor the index knows any more."""

    def damage(at: Path) -> None:
        edit_tensors(lambda tensors: tensors.pop(name, None))(at)
        edit_index(lambda index: index["weight_map"].pop(name))(at)

    return damage


def replace(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    def swap(tensors: dict) -> None:
        if name in tensors:
            tensors[name] = change(tensors[name]).contiguous()

    return edit_tensors(swap)


def set_bytes(name: str, value: int) -> Damage:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        other = tensor.clone()
        other.view(torch.uint8).view(-1)[:1] = value
        return other

    return replace(name, change)


def first_name(at: Path) -> str:
    return next(name for name in header(at / SHARD)[0] if name != "__metadata__")


def swap_offsets(head: dict) -> None:
    """Two tensors of different sizes change places."""
    names = [name for name in head if name != "__metadata__"]
    ends = {name: head[name]["data_offsets"] for name in names}
    first = names[0]
    other = next(n for n in names if ends[n][1] - ends[n][0] != ends[first][1] - ends[first][0])
    head[first]["data_offsets"], head[other]["data_offsets"] = ends[other], ends[first]


def share_a_tensor(at: Path) -> None:
    """The second shard holds a tensor of the first one too."""
    name, own = next(iter(load_file(at / SHARD).items()))
    save_file(load_file(at / OTHER) | {name: own}, at / OTHER)


def with_first(change: Callable[[dict], None]) -> Damage:
    return edit_header(lambda head: change(head[next(n for n in head if n != "__metadata__")]))


SCALE = "layers.0.attn.wq_a.scale"
EXPERT = "layers.3.ffn.experts.2.w1.scale"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "one byte cut": (cut(1), SHARD),
    "a page cut": (cut(4096), SHARD),
    "half cut": (lambda at: cut((at / SHARD).stat().st_size // 2)(at), SHARD),
    "only the length left": (
        lambda at: (at / SHARD).write_bytes((at / SHARD).read_bytes()[:8]),
        SHARD,
    ),
    "header cut": (lambda at: (at / SHARD).write_bytes((at / SHARD).read_bytes()[:60]), SHARD),
    "empty file": (lambda at: (at / SHARD).write_bytes(b""), SHARD),
    "trailing bytes": (
        lambda at: (at / SHARD).write_bytes((at / SHARD).read_bytes() + b"12345678"),
        SHARD,
    ),
    "absurd header length": (
        lambda at: (at / SHARD).write_bytes(b"\xff" * 8 + (at / SHARD).read_bytes()[8:]),
        SHARD,
    ),
    "header is no JSON": (
        lambda at: (at / SHARD).write_bytes((at / SHARD).read_bytes().replace(b"{", b"[", 1)),
        SHARD,
    ),
    "shard missing": (lambda at: (at / SHARD).unlink(), SHARD),
    "index missing": (lambda at: (at / INDEX).unlink(), INDEX),
    "index is no JSON": (lambda at: (at / INDEX).write_text("{"), INDEX),
    "index without map": (lambda at: (at / INDEX).write_text("{}"), INDEX),
    "index names a missing file": (
        edit_index(lambda i: i["weight_map"].update({"head.weight": "model-9.safetensors"})),
        "model-9.safetensors",
    ),
    "index leaves the folder": (
        edit_index(lambda i: i["weight_map"].update({"head.weight": "../x.safetensors"})),
        "../x.safetensors",
    ),
    "index names a tensor nobody has": (
        edit_index(lambda i: i["weight_map"].update({"ghost.weight": SHARD})),
        "ghost.weight",
    ),
    "index forgets a tensor": (
        edit_index(lambda i: i["weight_map"].pop("norm.weight")),
        "norm.weight",
    ),
    "index points to the wrong shard": (
        edit_index(
            lambda i: i["weight_map"].update(
                {"embed.weight": OTHER if i["weight_map"]["embed.weight"] == SHARD else SHARD}
            )
        ),
        "embed.weight",
    ),
    "wrong total size": (
        edit_index(lambda i: i.setdefault("metadata", {}).update(total_size=5)),
        "total_size",
    ),
    "tensor in two shards": (share_a_tensor, OTHER),
    "stray shard": (
        lambda at: save_file({"x": torch.ones(2)}, at / "extra.safetensors"),
        "extra.safetensors",
    ),
    "overlapping tensors": (
        with_first(lambda e: e.update(data_offsets=[0, e["data_offsets"][1] + 4])),
        SHARD,
    ),
    "swapped places": (edit_header(swap_offsets), SHARD),
    "negative offset": (with_first(lambda e: e.update(data_offsets=[-4, 4])), SHARD),
    "unknown dtype": (with_first(lambda e: e.update(dtype="F7")), SHARD),
    "shape without numbers": (with_first(lambda e: e.update(shape=["a"])), SHARD),
    "shape that does not fit the bytes": (
        with_first(lambda e: e.update(shape=[*e["shape"], 2])),
        SHARD,
    ),
    "missing weight": (drop("layers.4.ffn.gate.weight"), "layers.4.ffn.gate.weight"),
    "missing scale": (drop(SCALE), SCALE),
    "missing expert scale": (drop(EXPERT), EXPERT),
    "missing head": (drop("head.weight"), "head.weight"),
    "extra tensor": (
        edit_tensors(lambda t: t.update({"layers.0.attn.bias": torch.ones(4)}), SHARD),
        "layers.0.attn.bias",
    ),
    "wrong shape": (replace("norm.weight", lambda t: t[:-1]), "norm.weight"),
    "transposed": (replace("embed.weight", lambda t: t.T), "embed.weight"),
    "wrong dtype": (replace("norm.weight", lambda t: t.float()), "norm.weight"),
    "scale as numbers": (replace(SCALE, lambda t: t.view(torch.uint8).float()), SCALE),
    "NaN scale": (set_bytes(SCALE, 255), SCALE),
    "absurd scale": (set_bytes(SCALE, 3), SCALE),
    "NaN norm": (replace("norm.weight", lambda t: t * torch.nan), "norm.weight"),
    "half a drafter": (drop("mtp.1.ffn.shared_experts.w2.weight"), "mtp.1.ffn.shared_experts.w2"),
    "drafter without its head": (drop("mtp.1.markov_head.head.weight"), "mtp.1.markov_head.head"),
    "config missing": (lambda at: (at / "config.json").unlink(), "config.json"),
    "config is no JSON": (lambda at: (at / "config.json").write_text("{,}"), "config.json"),
    "config of another size": (
        lambda at: (at / "config.json").write_text(
            (at / "config.json").read_text().replace('"vocab_size": 256', '"vocab_size": 288')
        ),
        "embed.weight",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_refused_with_file_or_tensor(folder, name):
    """BL-18, BL-34, BL-65, BL-66: nothing starts on it, and the message says where it is broken."""
    damage, named = DAMAGES[name]
    damage(folder)
    report = check(folder, tokenizer=False)
    assert not report.ok
    assert named in "\n".join(str(finding) for finding in report.findings)
    with pytest.raises(DamagedCheckpoint) as refused:
        report.raise_if_bad()
    assert refused.value.exit_code == 1


def test_an_undamaged_folder_has_nothing_wrong(folder):
    report = check(folder, tokenizer=False)
    assert report.ok, str(report)
    assert report.has_draft


def test_a_checkpoint_without_any_drafter_is_whole(folder):
    names = [
        name for name in json.loads((folder / INDEX).read_text())["weight_map"] if "mtp" in name
    ]
    edit_tensors(lambda tensors: [tensors.pop(name, None) for name in names])(folder)
    edit_index(lambda index: [index["weight_map"].pop(name) for name in names])(folder)
    edit_index(lambda index: index.get("metadata", {}).pop("total_size", None))(folder)
    for path in folder.glob("*.safetensors"):
        if not load_file(path):
            path.unlink()
    report = check(folder, tokenizer=False)
    assert report.ok, str(report)
    assert not report.has_draft


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_flipped_header_byte_is_found_or_harmless(tmp_path_factory, place, flip):
    """Whatever passes decodes to exactly what was stored."""
    target = tmp_path_factory.mktemp("flip") / "model"
    shutil.copytree(GOLDEN, target, ignore=shutil.ignore_patterns("expected*", "spread*"))
    raw = bytearray((target / SHARD).read_bytes())
    (size,) = struct.unpack("<Q", raw[:8])
    raw[place % (8 + size)] ^= flip
    (target / SHARD).write_bytes(raw)
    if check(target, tokenizer=False).ok:
        before, after = load_file(GOLDEN / SHARD), load_file(target / SHARD)
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert tensor.dtype == after[name].dtype
            assert torch.equal(tensor.view(torch.uint8), after[name].view(torch.uint8))


def test_sums_find_a_single_changed_bit_of_the_embedded_model(tmp_path):
    target = tmp_path / "tiny"
    shutil.copytree(TINY, target)
    assert check(target).ok
    shard = sorted(target.glob("*.safetensors"))[-1]
    raw = bytearray(shard.read_bytes())
    raw[-5000] ^= 1
    shard.write_bytes(raw)
    assert shard.name in str(check(target))
    write_sums(target)
    assert "SHA-256" not in str(check(target))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda at: (at / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda at: (at / "tokenizer.json").write_text("{"), "tokenizer.json"),
        (
            lambda at: (at / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}'),
            "vocab_size",
        ),
    ],
)
def test_a_damaged_tokenizer_is_found(tmp_path, damage, named):
    target = tmp_path / "tiny"
    shutil.copytree(TINY, target)
    damage(target)
    assert named in str(check(target))


def test_every_byte_is_read_at_most_once_and_bits_are_those_of_the_file(folder):
    """BL-69: also with the drafter; E8M0 and I8 come as they are stored."""
    shape = Shape.load(folder)
    stored = {}
    for path in folder.glob("*.safetensors"):
        stored |= load_file(path)
    with Checkpoint(folder, shape, report=check(folder, tokenizer=False)) as checkpoint:
        for name, tensor in checkpoint.read():
            assert torch.equal(tensor.view(torch.uint8), stored[name].view(torch.uint8)), name
        assert checkpoint.bytes_read == checkpoint.total_bytes()
        with pytest.raises(ModelError, match="read"):
            list(checkpoint.read(["norm.weight"]))
    with pytest.raises(ModelError, match="closed"):
        checkpoint.tensor("norm.weight")


def test_progress_is_about_ten_plain_lines_with_bytes_per_second_without_a_terminal():
    out = io.StringIO()
    with loading_bar("load", 1000, out) as advance:
        for _ in range(100):
            advance(10)
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert all("/s" in line for line in lines)
    assert "1.0 kB of 1.0 kB" in lines[-1]


def test_the_embedded_model_is_found_and_foreign_names_are_answered(tmp_path, monkeypatch):
    assert find_model("tiny") == TINY
    assert find_model(str(GOLDEN)) == GOLDEN
    with pytest.raises(ModelNotFound, match="no such folder"):
        find_model("./nowhere")
    assert find_model("deepseek-ai/DeepSeek-V4.1-Flash-1017", hf_model_dir=GOLDEN) == GOLDEN
    with pytest.raises(ModelNotFound, match="does not exist"):
        find_model("deepseek-ai/DeepSeek-V4.1-Flash-1017", hf_model_dir=tmp_path / "gone")


def test_offline_a_model_that_is_not_cached_is_one_sentence(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE"):
        find_model("deepseek-ai/DeepSeek-V4.1-Flash-1017", cache_dir=tmp_path)


def test_disk_space_is_compared_before_a_download(tmp_path, monkeypatch):
    """The size is known from a dry run; nothing is fetched when it does not fit."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    class Planned:
        filename, file_size, will_download, commit_hash = INDEX, 10**18, True, "0" * 40

    fetched = []

    def download(*given, local_files_only=False, dry_run=False, **named):
        if local_files_only:
            raise errors.LocalEntryNotFoundError("not here")
        if dry_run:
            return [Planned()]
        fetched.append(given)
        return str(tmp_path)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(DiskShort, match=r"to download, .* free in"):
        find_model("deepseek-ai/DeepSeek-V4.1-Flash-1017", cache_dir=tmp_path)
    assert not fetched


class Hub:
    """What the client of the Hub answers: a cache, a plan, and a download that fills it."""

    def __init__(self, cached: Path | None, fetched: Path | None, failure: OSError | None = None):
        self.cached, self.fetched, self.failure = cached, fetched, failure
        self.asked: list[dict] = []

    def snapshot_download(self, name, **named):
        from huggingface_hub import errors

        self.asked.append(named)
        if named.get("local_files_only"):
            if self.cached is None:
                raise errors.LocalEntryNotFoundError("not here")
            return str(self.cached)
        if self.failure is not None:
            raise self.failure
        if named.get("dry_run"):
            return [self.planned(INDEX), self.planned(SHARD)]
        return str(self.fetched)

    @staticmethod
    def planned(file: str):
        from huggingface_hub.file_download import DryRunFileInfo

        return DryRunFileInfo("0" * 40, 1000, file, file, False, True)


@pytest.fixture
def hub(monkeypatch, folder):
    """Installs a fake Hub; `folder` gets the tokenizer that a whole checkpoint has."""
    import huggingface_hub
    from huggingface_hub import constants

    shutil.copy(TINY / "tokenizer.json", folder)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def install(**answers):
        fake = Hub(**answers)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
        return fake

    return install


def test_a_whole_cached_snapshot_is_used_without_asking_the_hub(hub, folder, tmp_path):
    """Only the files that the engine reads must be there: the client is told which."""
    fake = hub(cached=folder, fetched=None)
    assert find_model("owner/model", cache_dir=tmp_path) == folder
    assert len(fake.asked) == 1
    assert "*.safetensors" in fake.asked[0]["allow_patterns"]


def test_a_cached_snapshot_without_one_shard_is_completed(hub, folder, tmp_path):
    """BL-65: an interrupted download is not a model; size and free space are announced."""
    partial = shutil.copytree(folder, tmp_path / "partial")
    (partial / SHARD).unlink()
    fake, lines = hub(cached=partial, fetched=folder), []
    assert find_model("owner/model", cache_dir=tmp_path, announce=lines.append) == folder
    assert "2.0 kB to download" in lines[0]
    assert fake.asked[-1]["revision"] == "0" * 40
    hub(cached=partial, fetched=partial)
    with pytest.raises(ModelNotFound, match=SHARD):
        find_model("owner/model", cache_dir=tmp_path, announce=lines.append)


def test_a_hub_that_does_not_answer_is_one_sentence(hub, tmp_path):
    hub(cached=None, fetched=None, failure=OSError("no route\nto host"))
    with pytest.raises(ModelNotFound, match=r"no route\); check the name and the network") as said:
        find_model("owner/model", cache_dir=tmp_path)
    assert "\n" not in str(said.value)
