"""Settings: where a value comes from, what is refused and in which words."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import SettingError
from deepinfer.settings import ROWS, Settings, assignments, names
from deepinfer.variables import REPLACED, VARIABLES

NOTHING: dict[str, str] = {}
# variables of the original that switch something, and what this version answers to "yes"
SWITCHES = {
    "DEEPINFER_ENABLE_MTP_VARLEN": "verify = confidence",
    "DEEPINFER_BATCH_INVARIANT": "determinism = batch",
    "DEEPINFER_REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE": "eplb.count_prefill = True",
    "DEEPINFER_ENGRAM_FORCE_GPU_STORAGE": "engram = device",
    "DEEPINFER_ENFORCE_EAGER": None,
}
# one value per variable that asks for nothing this version lacks, and one that does or is wrong
ACCEPTED = {
    "ACCELERATOR": "cpu",
    "PLATFORM": "reference",
    "CACHE": "somewhere",
    "LOG": "DEBUG",
    "API_KEY": "secret-key",
    "HF_MODEL_DIR": "somewhere",
    "USE_NEXTN_DECODE": "0",
    "ENABLE_MTP_VARLEN": "off",
    "DFLASH_CONFIDENCE_HEAD_TEMPERATURE": "1.0",
    "MAX_BACKTRACKING_TOKENS": "1",
    "YOCO_PREFILL_TRUNCATION_MODE": "off",
    "YOCO_PREFILL_KEEP_TOKENS": "0",
    "BATCH_INVARIANT": "FALSE",
    "ZERO_OVERHEAD_SCHEDULING": "no",
    "PREFILL_ATTEMPT_INTERVAL": "70",
    "ANY_ATTEMPT_INTERVAL": "100",
    "ENFORCE_EAGER": "1",
    "CUDAGRAPH_BATCH_SIZE_INTERVAL": "8",
    "XGRAMMAR_TIMEOUT": "20",
    "XGRAMMAR_CACHE_LIMIT_BYTES": "10737418240",
    "XGRAMMAR_SO_BUILDER_CPUS": "4",
    "EXPERT_REARRANGEMENT_STEP_INTERVAL": "0",
    "EXPERT_COUNT_WINDOW_SIZE": "100",
    "OVERRIDE_NUM_EXTRA_EXPERTS": "0",
    "REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE": "0",
    "ENGRAM_FORCE_GPU_STORAGE": "off",
    "NUM_STATE_SLOTS_RATIO": "1.2",
    "GLOO_TIMEOUT": "60",
}
LATER = {
    "USE_NEXTN_DECODE": "5",
    "DFLASH_CONFIDENCE_HEAD_TEMPERATURE": "1,0.9,0.8",
    "MAX_BACKTRACKING_TOKENS": "6",
    "YOCO_PREFILL_TRUNCATION_MODE": "compact",
    "YOCO_PREFILL_KEEP_TOKENS": "140",
    "PREFILL_ATTEMPT_INTERVAL": "50",
    "ANY_ATTEMPT_INTERVAL": "50",
    "PREFILL_MAX_SUM_SEQLEN_K": "100000",
    "CUDAGRAPH_BATCH_SIZE_INTERVAL": "16",
    "XGRAMMAR_TIMEOUT": "5",
    "XGRAMMAR_CACHE_LIMIT_BYTES": "1",
    "XGRAMMAR_SO_BUILDER_CPUS": "2",
    "EXPERT_REARRANGEMENT_STEP_INTERVAL": "3000",
    "EXPERT_COUNT_WINDOW_SIZE": "10",
    "OVERRIDE_NUM_EXTRA_EXPERTS": "16",
    "GLOO_TIMEOUT": "14400",
}


def load(environment=NOTHING, file=None, **arguments):
    return Settings.load(arguments, environment=environment, file=file)


def refusal(environment=NOTHING, file=None, **arguments) -> str:
    with pytest.raises(SettingError) as caught:
        load(environment, file, **arguments)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def project(tmp_path):
    def write(text: str):
        path = tmp_path / "deepinfer.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_misspelt_variable_is_refused_with_the_nearest_known_name():
    said = refusal({"DEEPINFER_BATCH_INVARIENT": "1"})
    assert "did you mean DEEPINFER_BATCH_INVARIANT?" in said


@pytest.mark.parametrize("name", ["DEEPINFER_", "DEEPINFER_X", "DEEPINFER_PROFILE_STEP", *(
    f"DEEPINFER_{name}" for name in REPLACED)])
def test_a_variable_outside_the_closed_list_is_refused_and_answered(name):
    said = refusal({name: "1"})
    assert said.startswith(f"{name}: ")
    assert "DEEPINFER_" in said.removeprefix(name)


def test_variables_of_other_programs_are_not_looked_at():
    assert load({"HF_HOME": "x", "deepinfer_x": "1", "PATH": ""}).said() == []


@pytest.mark.parametrize("yes", ["1", "true", "TRUE", "yes", "Yes", "on"])
@pytest.mark.parametrize("name", SWITCHES)
def test_every_spelling_of_true_is_true(name, yes):
    asked = SWITCHES[name]
    if asked is None:
        assert load({name: yes}).graphs is False
    else:
        said = refusal({name: yes})
        assert said.startswith(f"{asked} (environment {name}): ")
        assert "is not in this version" in said


@pytest.mark.parametrize("no", ["0", "false", "False", "FALSE", "no", "off", "OFF"])
@pytest.mark.parametrize("name", SWITCHES)
def test_every_spelling_of_false_is_false(name, no):
    """The original takes "no", "off" and "FALSE" for true."""
    assert load({name: no}) == Settings()


@pytest.mark.parametrize("text", ["", "2", "ja", "y", "None", "-1"])
@pytest.mark.parametrize("name", SWITCHES)
def test_a_text_that_is_no_switch_is_refused(name, text):
    assert refusal({name: text}).startswith(f"{name} = {text!r}: must be one of 0, 1, true")


def test_the_switches_of_this_version_switch():
    name = "DEEPINFER_ZERO_OVERHEAD_SCHEDULING"
    assert [load({name: one}).async_scheduling for one in ("on", "off")] == [True, False]
    assert [load(replay=one).replay for one in ("off", "exact")] == ["off", "exact"]


def test_a_name_of_the_original_means_the_setting_of_ours():
    assert load(max_num_batched_tokens=64).max_tokens_per_step == 64
    assert load(max_tokens_per_step=64, max_num_batched_tokens=64).max_tokens_per_step == 64
    said = refusal(max_tokens_per_step=64, max_num_batched_tokens=32)
    assert "max_num_batched_tokens and max_tokens_per_step (argument) mean the same" in said


def test_every_variable_of_the_list_is_taken_where_it_asks_for_nothing_new():
    assert ACCEPTED.keys() | LATER.keys() == {one.name for one in VARIABLES}
    for name, text in ACCEPTED.items():
        load({f"DEEPINFER_{name}": text})


@pytest.mark.parametrize("name", LATER)
def test_a_wish_for_a_later_feature_is_refused_and_never_ignored(name):
    said = refusal({f"DEEPINFER_{name}": LATER[name]})
    assert f"(environment DEEPINFER_{name}): " in said
    assert " is not in this version; leave it out" in said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("USE_NEXTN_DECODE", "-1"),
        ("USE_NEXTN_DECODE", "five"),
        ("DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "0"),
        ("DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "1,,2"),
        ("XGRAMMAR_TIMEOUT", "nan"),
        ("GLOO_TIMEOUT", "inf"),
        ("YOCO_PREFILL_TRUNCATION_MODE", "on"),
        ("LOG", "loud"),
        ("ACCELERATOR", "tpu"),
        ("CACHE", ""),
    ],
)
def test_a_value_outside_its_range_is_refused_with_variable_and_range(name, text):
    assert refusal({f"DEEPINFER_{name}": text}).startswith(f"DEEPINFER_{name} = {text!r}: must be ")


def test_argument_wins_over_file_over_environment_over_default(project):
    environment = {"DEEPINFER_LOG": "debug"}
    file = project('log = "info"\nmax_num_seqs = 7\n')
    assert load().log == "warning"
    assert load(environment).log == "debug"
    assert load(environment, file).log == "info"
    settings = load(environment, file, log="error")
    assert (settings.log, settings.max_num_seqs) == ("error", 7)
    assert settings.origin("log") == "argument"
    assert settings.origin("max_num_seqs") == "file deepinfer.toml"
    assert load(environment).origin("log") == "environment DEEPINFER_LOG"
    assert settings.origin("accumulate") == "default"


def test_none_and_auto_say_nothing_so_the_next_source_decides():
    settings = load({"DEEPINFER_PLATFORM": "reference"}, platform="auto", max_model_len=None)
    assert settings.platform == "reference"
    assert settings.origin("platform") == "environment DEEPINFER_PLATFORM"


def test_a_project_file_is_read_strictly(project, tmp_path):
    assert load(file=project('[ops]\n"gemm.logits" = "reference:eager"\n')).ops == {
        "gemm.logits": "reference:eager"
    }
    assert "did you mean max_num_seqs?" in refusal(file=project("max_num_seq = 3"))
    assert "did you mean eplb.interval" in refusal(file=project("[eplb]\nintervall = 3"))
    said = refusal(file=project("[eplb]\ninterval = 3"))
    assert said.startswith("eplb.interval = 3 (file deepinfer.toml): ")
    assert "is not TOML" in refusal(file=project("log = "))
    assert "No such file" in refusal(file=tmp_path / "absent.toml")


def test_accelerator_chooses_the_platform_and_conflicts_are_refused():
    assert load({"DEEPINFER_ACCELERATOR": "cpu"}).platform == "reference"
    assert load({"DEEPINFER_ACCELERATOR": "cpu"}, platform="x+reference").platform == "x+reference"
    assert load({"DEEPINFER_ACCELERATOR": "nvidia"}, platform="h20").platform == "h20"
    said = refusal({"DEEPINFER_ACCELERATOR": "nvidia"}, platform="reference")
    assert said == (
        "DEEPINFER_ACCELERATOR = nvidia means nvidia, but platform = reference (argument) "
        "stands on reference; unset one of them"
    )
    said = refusal({"DEEPINFER_ACCELERATOR": "ascend", "DEEPINFER_PLATFORM": "reference"})
    assert "(environment DEEPINFER_PLATFORM)" in said


def test_backtracking_below_the_drafts_is_refused_with_the_arithmetic():
    """The original silently raises the value."""
    said = refusal(drafts=5, max_backtracking=5)
    assert said == "max_backtracking = 5 (argument): must be at least drafts + 1 = 5 + 1 = 6"
    assert load(max_backtracking=1).backtracking == load().backtracking == 1


def test_settings_are_compared_with_the_model_when_it_is_known():
    load().check_model(window=128, block=5)
    load(max_model_len=4096).check_model(window=128, block=5, limit=4096)
    with pytest.raises(SettingError, match="max_model_len = 4097 .* has 4096 positions"):
        load(max_model_len=4097).check_model(window=128, block=5, limit=4096)


@pytest.mark.parametrize(
    ("name", "value", "answer"),
    [
        ("max_num_seqs", True, "an integer of at least 1"),
        ("max_num_seqs", "7", "an integer of at least 1"),
        ("max_num_seqs", 0, "an integer of at least 1"),
        ("max_model_len", 1.5, "an integer of at least 1"),
        ("gpu_memory_utilization", 0.0, "a number above 0 and up to 1"),
        ("gpu_memory_utilization", 1.01, "a number above 0 and up to 1"),
        ("gpu_memory_utilization", float("nan"), "a number above 0 and up to 1"),
        ("accumulate", "float16", "float32 or float64"),
        ("allow_unverified", 1, "one of 0, 1, true"),
        ("ops", {"gemm.logits": 3}, "a mapping of names to names"),
        ("cache_dir", "", "a path"),
        ("platform", 3, "a text"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused_with_its_range(name, value, answer):
    assert f" (argument): must be {answer}" in refusal(**{name: value})


@pytest.mark.parametrize("name", [name for name, one in ROWS.items() if one.metadata["later"]])
def test_the_default_of_a_later_feature_is_what_this_version_does(name):
    default = ROWS[name].metadata["default"]
    assert Settings.load({name: default}, environment={}) == Settings()


@pytest.mark.parametrize(
    "keywords",
    [
        {"expert_parallel_size": 1, "data_parallel_size": 0, "context_parallel_size": 1},
        {"tokenizer": None, "trust_remote_code": False, "seed": 0, "load_format": "auto"},
        {"engine_rank": 0, "engine_type": "NORMAL", "stop_preempted_request": False},
    ],
)
def test_keywords_of_the_original_are_taken_where_they_ask_for_nothing(keywords):
    assert load(**keywords).said() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expert_parallel_size", 8),
        ("expert_parallel_size", True),
        ("trust_remote_code", True),
        ("trust_remote_code", 0),
        ("seed", 1),
        ("tokenizer", "elsewhere"),
        ("load_format", "dummy"),
        ("engine_type", "PROMPT"),
    ],
)
def test_keywords_of_the_original_that_ask_for_more_are_refused_in_one_sentence(name, value):
    assert refusal(**{name: value}).startswith(f"{name} = {value!r} (argument): ")


@given(st.text(min_size=1, max_size=30))
def test_an_unknown_keyword_is_always_answered_with_a_known_one(word):
    if word in ROWS:
        return
    with pytest.raises(SettingError) as caught:
        Settings.load({word: object()}, environment={})
    assert any(name in str(caught.value) for name in ROWS) or word in str(caught.value)


def test_words_of_a_command_line_become_arguments():
    found = assignments(["max_num_seqs=12", "allow_unverified=yes", "ops=a.b=c:d,e.f=g:h"])
    settings = load(**found)
    assert settings.max_num_seqs == 12
    assert settings.allow_unverified is True
    assert settings.ops == {"a.b": "c:d", "e.f": "g:h"}
    for words, answer in [
        (["max_num_seqs"], "write it as key=value"),
        (["max_num_seqs=many"], "must be an integer of at least 1"),
        (["max_num_sekws=1"], "did you mean max_num_seqs"),
        (["log=info", "log=debug"], "set twice"),
    ]:
        with pytest.raises(SettingError) as caught:
            assignments(words)
        assert answer in str(caught.value)


def test_a_key_is_never_shown():
    settings = load({"DEEPINFER_API_KEY": "secret-key"})
    assert settings.api_key == "secret-key"
    assert "secret-key" not in repr(settings)
    assert settings.said() == [("api_key", "set", "environment DEEPINFER_API_KEY")]
    assert "secret" not in refusal(api_key=["secret"])


def test_every_setting_is_documented_and_every_variable_belongs_to_one():
    rows = {row.name: row for row in names()}
    assert rows.keys() == ROWS.keys()
    assert all(row.doc and row.takes for row in rows.values())
    assert rows["drafts"].variables == ("DEEPINFER_USE_NEXTN_DECODE",)
    assert rows["platform"].variables == ("DEEPINFER_ACCELERATOR", "DEEPINFER_PLATFORM")
    assert {one.setting for one in VARIABLES} <= rows.keys()


def test_settings_survive_a_copy_and_refuse_a_wrong_change():
    settings = load(max_num_seqs=3)
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(SettingError, match="max_num_seqs = 0"):
        replace(settings, max_num_seqs=0)
