"""The examples run as a newcomer runs them."""

from __future__ import annotations

import runpy
from pathlib import Path

import deepinfer

EXAMPLE = Path(next(iter(deepinfer.__path__))).parent / "examples" / "offline_inference.py"


def test_the_offline_example_answers_and_its_seed_reproduces(capsys):
    main = runpy.run_path(str(EXAMPLE))["main"]
    assert main(["--platform", "reference", "--model", "tiny", "--max-tokens", "8"]) == 0
    shown = capsys.readouterr().out
    assert "8 tokens" in shown
    assert shown.endswith("the same tokens twice\n")


def test_the_offline_example_says_in_a_sentence_what_is_wrong(capsys):
    main = runpy.run_path(str(EXAMPLE))["main"]
    assert main(["--platform", "no_such_platform"]) == 2
    assert "no_such_platform" in capsys.readouterr().err
    assert main(["--model", "no such folder"]) == 2
