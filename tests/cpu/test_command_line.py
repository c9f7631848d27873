"""The command line: exit codes, one clear sentence, no traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def deepinfer(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deepinfer", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        timeout=120,
    )


def refused(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("deepinfer: ")
    return done.stderr


def test_run_streams_an_answer_and_a_summary_line():
    done = deepinfer(
        "run",
        "--platform",
        "reference",
        "--model",
        "tiny",
        "--max-tokens",
        "10",
        "--temperature",
        "0",
        "Tell me a story about a fox and a lantern.",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "tok/s" in done.stderr
    assert "plan " in done.stderr


def test_a_file_of_prompts_is_answered_as_one_json_document(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("Hello\nWho are you?\n")
    done = deepinfer(
        "run", "--platform", "reference", "--file", str(file), "--max-tokens", "4", "--json"
    )
    outputs = json.loads(done.stdout)
    assert [output["index"] for output in outputs] == [0, 1]
    assert {"text", "token_ids", "finish_reason", "usage", "plan_id"} <= set(outputs[0])


def test_plan_has_no_hole_and_prints_its_id():
    done = deepinfer("plan", "--platform", "reference", "--model", "tiny", "--json")
    plan = json.loads(done.stdout)
    assert len(plan["plan_id"]) == 12
    assert all(row["kernel"] for row in plan["rows"])


def test_plan_diff_of_a_plan_with_itself_is_empty(tmp_path):
    saved = tmp_path / "plan.json"
    saved.write_text(deepinfer("plan", "--platform", "reference", "--json").stdout)
    done = deepinfer("plan", "--diff", str(saved), "reference")
    assert (done.returncode, done.stdout.strip()) == (0, "the plans are equal")
    other = deepinfer("plan", "--diff", str(saved), "reference", "--set", "accumulate=float64")
    assert refused(other, 1)
    assert "float64" in other.stdout


def test_a_platform_that_is_not_installed_is_one_reason():
    said = refused(deepinfer("plan", "--platform", "ascend", "--model", "tiny"))
    assert "ascend" in said


def test_auto_without_an_accelerator_names_the_reference():
    """D6."""
    assert "--platform reference" in refused(deepinfer("run", "Hello"))


def test_a_misspelt_variable_is_refused_with_the_nearest_name():
    said = refused(deepinfer("doctor", DEEPINFER_BATCH_INVARIENT="1"))
    assert "DEEPINFER_BATCH_INVARIANT" in said


def test_doctor_reports_the_installation():
    done = deepinfer("doctor", "--json")
    assert done.returncode in (0, 1), done.stderr
    assert "reference" in done.stdout


def test_explain_shows_the_contract_and_who_serves_it():
    done = deepinfer("explain", "attention.sparse_decode", "--platform", "reference")
    assert done.returncode == 0, done.stderr
    assert "reference:eager" in done.stdout
    assert "window cache of the layer" in done.stdout
    assert "attention.sparse_decode" in refused(
        deepinfer("explain", "attention.sparse_decod", "--platform", "reference")
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--no-such-option"], "--no-such-option"),
        (["zzz"], "zzz"),
        (["run", "--platform", "reference", "--file", "missing.txt"], "missing.txt"),
        (
            ["run", "--platform", "reference", "--model", "no/such/folder/x", "Hi"],
            "no/such/folder/x",
        ),
        (["run", "--platform", "reference", "--temperature", "-1", "Hi"], "temperature"),
        (["run", "--platform", "reference", "--think", "maybe", "Hi"], "--think maybe"),
        (["run", "--platform", "reference", "--set", "max_model_lem=3", "Hi"], "max_model_len"),
        (["golden", "no_such_folder"], "no_such_folder"),
    ],
)
def test_wrong_words_are_answered_with_one_sentence(words, expected):
    assert expected in refused(deepinfer(*words))


def test_debug_shows_the_traceback():
    done = deepinfer(
        "run", "--platform", "reference", "--model", "nowhere_at_all/", "--debug", "Hi"
    )
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_model_that_does_not_fit_memory_is_one_sentence(tmp_path):
    shutil.copy(ROOT / "tests" / "data" / "official_config.json", tmp_path / "config.json")
    said = refused(deepinfer("plan", "--platform", "reference", "--model", str(tmp_path)))
    assert "memory is short by" in said


def test_check_names_the_damage(tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(ROOT / "checkpoints" / "tiny", folder)
    assert deepinfer("check", str(folder)).returncode == 0
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-1])
    assert shard.name in refused(deepinfer("check", str(folder)), 1)


def test_golden_compares_every_tensor():
    done = deepinfer("golden", "tests/golden/tiny_a", "--platform", "reference")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 beyond tolerance" in done.stdout


def test_chat_remembers_and_obeys_its_commands():
    done = subprocess.run(
        [sys.executable, "-m", "deepinfer", "chat", "--platform", "reference", "--max-tokens", "4"],
        input="Hello\n/reset\n/nonsense\n/load nothing.json\n/think maybe\n/quit\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "forgotten" in done.stderr
    assert "/nonsense: unknown" in done.stderr
    assert "/load nothing.json" in done.stderr
    assert "--think maybe" in done.stderr
    assert "Traceback" not in done.stderr
