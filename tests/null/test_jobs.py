"""Files of requests: every line has one answer, whatever is wrong, whenever it is killed."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer import cli, jobs
from deepinfer.errors import CheckFailed, RequestError, UsageError
from deepinfer.jobs import opened, read_line, stated
from deepinfer.output import Output, Timings, Usage
from deepinfer.sample.params import SamplingParams

MIXED = [
    '{"id": "a", "prompt": "one", "max_tokens": 3}',
    '{"id": "b", "prompt": [1, 2, 3], "seed": 7}',
    "",
    "{broken",
    '{"custom_id": "c", "body": {"messages": [{"role": "user", "content": "h\u00e9"}]}}',
    '{"prompt": "no id"}',
    '{"id": "a", "prompt": "again"}',
    '{"id": "late", "prompt": "two"}',
    '{"id": "last", "prompt": "three"}',
]


class Fake:
    """Answers by what is asked alone, at most `width` at a time, the newest first."""

    def __init__(self, width: int = 3, aborts: tuple = (), fails: tuple = ()) -> None:
        self.width, self.aborts, self.fails = width, aborts, fails
        self.taken: list = []

    def answers(self, asked):
        asked, held = iter(asked), []
        while True:
            while len(held) < self.width and (one := next(asked, None)) is not None:
                self.taken.append(one)
                held.append(one)
            if not held:
                return
            yield self.one(*held.pop())

    def one(self, key, prompt, params, as_chat):
        if key in self.fails:
            return key, RequestError(f"{key} is too long")
        reason = "abort" if key in self.aborts else "stop"
        text = f"{prompt}/{params.max_tokens}/{params.seed}/{as_chat}"
        return key, Output(
            len(self.taken), [1], text, [5, 6], reason, Usage(1, 2), Timings(0.1, 0.2), "plan"
        )


class Killed(BaseException):
    """What stands for the end of the process."""


def source(folder: Path, lines=MIXED, name="in.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def go(file, out, llm=None, told=lambda one: None, **defaults):
    """One run; the jobs object afterwards, and the fake."""
    llm = llm or Fake()
    with opened(file, out, defaults) as work:
        work.answer(llm, told)
    return work, llm


def records(out: Path) -> list[dict]:
    return [json.loads(line) for line in out.read_bytes().split(b"\n")[:-1]]


def lines_of(out: Path) -> Counter:
    content = out.read_bytes()
    assert not content or content.endswith(b"\n")
    return Counter(content.splitlines())


def by_line(out: Path) -> dict[int, dict]:
    found = records(out)
    assert len({one["line"] for one in found}) == len(found)
    return {one["line"]: one for one in found}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its input and the bytes of its answers."""
    folder = tmp_path_factory.mktemp("whole")
    file, out = source(folder), folder / "out.jsonl"
    go(file, out)
    return file, out.read_bytes()


def test_every_line_has_one_answer_and_bad_ones_fail_alone(tmp_path):
    file, out = source(tmp_path), tmp_path / "out.jsonl"
    sizes = []
    work, llm = go(file, out, told=lambda one: sizes.append((one.ended, len(records(out)))))
    assert sizes == [(n, n) for n in range(1, 9)]
    found = by_line(out)
    assert sorted(found) == [0, 1, 3, 4, 5, 6, 7, 8]
    assert [found[n]["id"] for n in (0, 1, 3, 4, 5, 6)] == ["a", "b", 3, "c", 5, "a"]
    assert found[0]["text"] == "one/3/None/False"
    assert found[1]["text"] == "[1, 2, 3]/None/7/False"
    assert found[4]["text"].endswith("/True")
    assert found[0]["usage"]["total_tokens"] == 3
    assert "h\u00e9".encode() in out.read_bytes()
    assert {n for n, one in found.items() if one["error"]} == {3, 6}
    assert found[3]["error"]["type"] == found[6]["error"]["type"] == "BadLine"
    assert "earlier line" in found[6]["error"]["message"]
    assert all(list(one)[:3] == ["id", "line", "digest"] for one in found.values())
    assert all(len(one["digest"]) == 16 for one in found.values())
    assert (work.answered, work.failed, work.missing, work.tokens) == (6, 2, 0, 12)
    assert "6 answered now, 0 before, 2 failed" in work.summary
    assert "tokens/s" in work.summary
    assert len(llm.taken) == 6


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[1]", "JSON object"),
        ('{"id": "x"}', "either prompt or messages"),
        ('{"prompt": 3}', "prompt must be"),
        ('{"prompt": [1, true]}', "prompt must be"),
        ('{"prompt": ["a", "b"]}', "prompt must be"),
        ('{"messages": [1]}', "messages must be"),
        ('{"custom_id": true, "body": {"prompt": "x"}}', "custom_id must be"),
        ('{"prompt": "x", "temprature": 1}', "did you mean temperature"),
        ('{"prompt": "x", "temperature": "hot"}', "temperature = 'hot'"),
        ('{"prompt": "x", "temperature": 1' + "0" * 400 + "}", "too large"),
        ('{"prompt": "x", "max_tokens": 0}', "max_tokens = 0"),
        ('{"prompt": "x", "temperature": NaN}', "temperature = nan"),
        ('{"prompt": "\\ud800"}', "surrogates"),
        ('{"body": 3}', "body must be"),
        ('{"id": 1, "body": {"prompt": "x"}}', "id: only custom_id"),
        ('{"body": {"prompt": "x", "id": 1}}', "id: no such"),
        ('{"method": "GET", "body": {"prompt": "x"}}', "method must be"),
        ('{"url": "/v1/chat/completions", "body": {"prompt": "x"}}', "url /v1/chat"),
        ('{"body": {"prompt": "x", "model": 1}}', "model must be"),
        ('{"body": {"prompt": "x", "stream": true}}', "come whole"),
        ('{"body": {"prompt": "x", "max_tokens": 1, "max_completion_tokens": 1}}', "another name"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_wrong_line_says_what_is_wrong_and_the_rest_goes_on(tmp_path, line, told):
    file, out = source(tmp_path, ['{"prompt": "x"}', line, '{"prompt": "y"}']), tmp_path / "out"
    work, _ = go(file, out)
    found = by_line(out)
    assert told in found[1]["error"]["message"]
    assert not found[0]["error"] and not found[2]["error"]
    assert (work.answered, work.failed) == (2, 1)


@settings(max_examples=200)
@given(
    st.binary(max_size=80)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "prompt", "body", "n", "stop", "messages", "logit_bias", "self"])
            | st.text(),
            inner,
            max_size=4,
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_no_line_whatsoever_breaks_the_reader(raw):
    line = read_line(4, raw, {"seed": 1})
    assert (line.job is None) == (line.error is not None)
    assert type(line.id) in (str, int) and len(line.digest) == 16


def test_the_batch_form_has_the_fields_of_its_body():
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stop": ["a"],
            "max_completion_tokens": 5, "top_p": 0.5, "logit_bias": {"7": 2}, "n": 2}  # fmt: skip
    record = {"custom_id": "k", "method": "POST", "url": "/v1/chat/completions", "body": body}
    line = read_line(0, json.dumps(record).encode(), {})
    expected = SamplingParams(stop=["a"], max_tokens=5, top_p=0.5, logit_bias={7: 2}, n=2)
    assert line.job == (body["messages"], expected, True)


def test_defaults_fill_what_a_line_leaves_open_and_count_as_its_content():
    defaults = stated(SamplingParams(temperature=0, max_tokens=9, stop="x"))
    assert defaults == {"temperature": 0.0, "max_tokens": 9, "stop": ("x",)}
    own = b'{"prompt": "x", "max_tokens": 2, "temperature": 1, "stop": null}'
    assert read_line(0, own, defaults).job[1] == SamplingParams(max_tokens=2)
    assert read_line(0, own, defaults).digest == read_line(0, own, {}).digest
    bare = b'{"prompt": "x"}'
    assert read_line(0, bare, defaults).job[1] == SamplingParams(**defaults)
    assert read_line(0, bare, defaults).digest != read_line(0, bare, {}).digest
    assert read_line(0, bare, {}).digest == read_line(0, b' { "prompt":"\\u0078"}', {}).digest


def test_a_byte_order_mark_blank_lines_and_bytes_that_are_no_text_do_no_harm(tmp_path):
    file, out = tmp_path / "in.jsonl", tmp_path / "out"
    first, last = b'\xef\xbb\xbf{"id": 1, "prompt": "x"}\r\n \t\r\n\r\n', b'{"prompt": "\xff"}'
    file.write_bytes(first + b'{"id": 2, "prompt": "y"}\n' + last)
    work, _ = go(file, out)
    assert {n: one["id"] for n, one in by_line(out).items()} == {0: 1, 3: 2, 4: 4}
    assert (work.answered, work.left, work.failed) == (2, 3, 1)
    assert "0xff" in by_line(out)[4]["error"]["message"]


def test_a_line_longer_than_the_limit_fails_alone_and_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "LONGEST", 32)
    lines = ['{"prompt": "x"}', json.dumps({"prompt": "x" * 200}), '{"prompt": "y"}']
    file, out = source(tmp_path, lines), tmp_path / "out"
    go(file, out)
    found = by_line(out)
    assert "more than 32 bytes" in found[1]["error"]["message"]
    assert found[2]["text"].startswith("y/")


def test_the_input_is_read_only_as_far_as_it_is_taken(tmp_path):
    lines = [json.dumps({"prompt": str(n)}) for n in range(5000)]
    file, out, llm = source(tmp_path, lines), tmp_path / "out", Fake(width=2)
    far = []
    with opened(file, out, {}) as work:
        work.answer(llm, lambda one: far.append((one._stream.tell(), len(one._pending))))
    assert far[0][0] < file.stat().st_size // 2
    assert max(pending for _, pending in far) <= 2
    assert work.answered == 5000


def test_an_answer_that_is_an_error_is_kept_and_not_asked_again(tmp_path):
    file, out = source(tmp_path), tmp_path / "out"
    work, _ = go(file, out, Fake(fails=("b",)))
    error = by_line(out)[1]["error"]
    assert error == {"type": "RequestError", "message": "b is too long"}
    before = out.read_bytes()
    work, llm = go(file, out)
    assert (llm.taken, work.left, out.read_bytes()) == ([], 0, before)
    assert "0 answered now, 5 before, 3 failed" in work.summary


def test_an_aborted_request_is_asked_again(tmp_path, whole):
    file, out = source(tmp_path), tmp_path / "out"
    work, _ = go(file, out, Fake(aborts=("b", "late")))
    assert (work.missing, work.answered, work.failed) == (2, 4, 2)
    assert "2 without an answer" in work.summary
    work, llm = go(file, out)
    assert sorted(one[0] for one in llm.taken) == ["b", "late"]
    assert lines_of(out) == Counter(whole[1].splitlines())


@pytest.mark.parametrize("change", [{"finish_reason": "abort"}, {"error": {"type": "abort"}}])
def test_an_aborted_line_of_a_file_is_asked_again_once(tmp_path, change):
    file, out = source(tmp_path), tmp_path / "out"
    go(file, out)
    changed = [one | change if one["id"] == "b" else one for one in records(out)]
    out.write_text("".join(json.dumps(one) + "\n" for one in changed))
    assert [one[0] for one in go(file, out)[1].taken] == ["b"]
    assert go(file, out)[1].taken == []


def test_killed_at_every_byte_of_the_last_two_lines_it_ends_with_the_same_lines(tmp_path, whole):
    file, content = whole
    out = tmp_path / "out.jsonl"
    lines = content.splitlines(keepends=True)
    expected = Counter(content.splitlines())
    for cut in range(len(content) - len(lines[-1]) - len(lines[-2]), len(content) + 1):
        out.write_bytes(content[:cut])
        work, llm = go(file, out)
        assert lines_of(out) == expected, cut
        kept = content[:cut].count(b"\n")
        assert len(llm.taken) == len(lines) - kept, cut
        assert work.answered == len(lines) - kept


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_killed_anywhere_any_number_of_times_it_ends_with_the_same_lines(tmp_path, whole, data):
    file, content = whole
    out = tmp_path / "out.jsonl"
    out.write_bytes(b"")
    for _ in range(data.draw(st.integers(1, 4))):
        last = data.draw(st.integers(1, 9))

        def told(one, last=last):
            if one.ended == last:
                raise Killed

        try:
            go(file, out, Fake(width=data.draw(st.integers(1, 5))), told)
        except Killed:
            written = out.read_bytes()
            begin = written.rfind(b"\n", 0, -1) + 1
            out.write_bytes(written[: data.draw(st.integers(begin, len(written)))])
    go(file, out)
    assert lines_of(out) == Counter(content.splitlines())


def test_what_was_answered_before_a_failure_stays(tmp_path, whole):
    class Breaks(Fake):
        def one(self, key, *rest):
            if key == "late":
                raise RuntimeError("the device is gone")
            return super().one(key, *rest)

    file, out = source(tmp_path), tmp_path / "out"
    with pytest.raises(RuntimeError, match="gone"):
        go(file, out, Breaks(width=1))
    assert {one["id"] for one in records(out)} == {"a", "b", 3, "c", 5}
    go(file, out)
    assert lines_of(out) == Counter(whole[1].splitlines())


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (['{"id": "z", "prompt": "one", "max_tokens": 3}', *MIXED[1:]], "id 'a' there and 'z'"),
        (['{"id": "a", "prompt": "ONE", "max_tokens": 3}', *MIXED[1:]], "line 0 .id 'a'. differ"),
        (['{"id": "a", "prompt": "one", "max_tokens": 4}', *MIXED[1:]], "line 0 .id 'a'. differ"),
        (MIXED[:3], "8 answers.*only 2"),
    ],
)
def test_answers_of_another_input_are_refused_and_stay(tmp_path, lines, told):
    out = tmp_path / "out"
    go(source(tmp_path), out)
    before, llm = out.read_bytes(), Fake()
    with pytest.raises(UsageError, match=f"(?s){told}.*choose another --out"):
        go(source(tmp_path, lines), out, llm)
    with pytest.raises(UsageError, match="sampling of line 0 .* differ"):
        go(source(tmp_path), out, llm, temperature=0.0)
    assert (out.read_bytes(), llm.taken) == (before, [])


@pytest.mark.parametrize(
    "content",
    [
        b"notes of mine",
        b"notes\nof mine\n",
        b'{"id": 1, "prompt": "x"}',
        b'{"id": 1, "prompt": "x"}\n',
        b'{"id": 1, "line": 0, "digest": "zz", "error": null}\n',
        b'{"id": 1, "li\n{"id": 2, "li',
        b"[]\n",
    ],
)
def test_a_file_that_holds_something_else_is_refused_and_stays(tmp_path, content):
    out = tmp_path / "out"
    out.write_bytes(content)
    with pytest.raises(UsageError, match="choose another --out"):
        go(source(tmp_path), out)
    assert out.read_bytes() == content


def test_the_input_itself_is_no_place_for_answers(tmp_path):
    file = source(tmp_path)
    before = file.read_bytes()
    with pytest.raises(UsageError, match="the file with the requests"):
        go(file, file)
    assert file.read_bytes() == before


def test_two_runs_cannot_write_one_file(tmp_path):
    file, out = source(tmp_path), tmp_path / "out"
    with opened(file, out, {}):
        with pytest.raises(UsageError, match="another run is writing it"), opened(file, out, {}):
            pass
    assert go(file, out)[0].answered == 6


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_a_file_that_cannot_be_opened_is_one_error(tmp_path, name):
    with pytest.raises(UsageError, match=f"{name}.* cannot be opened"):
        go(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="no/such/out cannot be opened"):
        go(source(tmp_path), tmp_path / "no/such/out")


def test_a_pipe_can_be_answered_but_not_gone_on_with(tmp_path):
    out = tmp_path / "out"
    for told in ("", "must be a file on disk"):
        read, write = os.pipe()
        os.write(write, b'{"prompt": "x"}\n{"prompt": "y"}\n')
        os.close(write)
        with pytest.raises(UsageError, match=told) if told else nullcontext():
            work, _ = go(Path(f"/dev/fd/{read}"), out)
        os.close(read)
    assert (work.left, work.answered, work.missing) == (None, 2, 0)


def test_numbers_that_json_cannot_write_become_null_and_halves_stay_escapes(tmp_path):
    class Odd(Fake):
        def one(self, key, *rest):
            values = super().one(key, *rest)[1].__dict__
            return key, Output(**values | {"timings": Timings(float("inf"), 1.0), "text": "\ud800"})

    file, out = source(tmp_path, MIXED[:1]), tmp_path / "out"
    go(file, out, Odd())
    assert b'"first_token_s": null' in out.read_bytes()
    assert records(out)[0]["text"] == "\ud800"
    assert go(file, out)[1].taken == []


def test_requests_without_an_answer_and_answers_without_a_request_are_noticed(tmp_path):
    class Lazy(Fake):
        def answers(self, asked):
            yield next(super().answers(asked))

    class Twice(Fake):
        def answers(self, asked):
            yield from [next(super().answers(asked))] * 2

    file, out = source(tmp_path, MIXED[:2]), tmp_path / "out"
    assert go(file, out, Lazy(width=1))[0].missing == 1
    with pytest.raises(CheckFailed, match="for 'b', for which nobody waits"):
        go(file, out, Twice())
    assert len(by_line(out)) == 2


class House(Fake):
    """An LLM that the command line opens."""

    made: list = []

    def __init__(self, **given):
        super().__init__()
        self.made.append(given)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


@pytest.fixture
def command(monkeypatch, capfd):
    """Runs `deepinfer run` over the fake: exit code, stdout, stderr."""
    monkeypatch.setattr("deepinfer.llm.LLM", House)
    House.made.clear()

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            cli.main(["run", "--platform", "reference", *map(str, words)])
        return ended.value.code, *capfd.readouterr()

    return call


def test_the_command_writes_the_file_and_goes_on(tmp_path, command):
    good = [line for line in MIXED if line not in ("{broken", MIXED[6])]
    file, out = source(tmp_path, good), tmp_path / "out"
    code, said, told = command("--file", file, "--out", out, "--max-tokens", 5)
    assert (code, said) == (0, "")
    assert by_line(out)[1]["text"] == "[1, 2, 3]/5/7/False"
    assert "answering: 6 of 6" in told and "tokens/s" in told and "requests/s" not in said
    assert "6 answered now, 0 before, 0 failed" in told
    assert [one["platform"] for one in House.made] == ["reference"]
    code, _, told = command("--file", file, "--out", out, "--max-tokens", 5)
    assert code == 0 and "0 answered now, 6 before" in told
    assert len(House.made) == 1, "nothing waits, so nothing is loaded"


def test_the_command_says_1_if_a_line_failed_now_or_before(tmp_path, command):
    file, out = source(tmp_path), tmp_path / "out"
    for _ in range(2):
        code, _, told = command("--file", file, "--out", out, "--quiet")
        assert code == 1
        assert told == 'deepinfer: 2 lines failed; their answers say why in "error"\n'


def test_the_command_without_out_writes_the_lines_to_stdout(tmp_path, command):
    code, said, told = command("--file", source(tmp_path))
    assert code == 1 and "6 answered now" in told
    assert {json.loads(line)["line"] for line in said.splitlines()} == {0, 1, 3, 4, 5, 6, 7, 8}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hello"], "prompts and --file were both given"),
        (["--raw"], "--raw cannot go"),
        (["--system", "be"], "--system cannot go"),
        (["--think", "on"], "--think cannot go"),
        (["--json"], "--json cannot go"),
    ],
)
def test_the_command_refuses_words_that_a_file_cannot_follow(tmp_path, command, words, told):
    out = tmp_path / "out"
    code, said, error = command("--file", source(tmp_path), "--out", out, *words)
    assert (code, said) == (2, "") and told in error
    assert House.made == [] and not out.exists()
    code, _, error = command("--out", out, "hello")
    assert code == 2 and "--out needs --file" in error
