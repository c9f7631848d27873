"""The front door: LLM, run, streaming, and faults that stay with their prompt."""

from __future__ import annotations

import asyncio

import pytest

from deepinfer import LLM, Output, SamplingParams, run
from deepinfer.errors import RequestError, SettingError
from deepinfer.llm import BadPrompts
from deepinfer.sample.params import SamplingError
from deepinfer.serving import Closed

GREEDY = SamplingParams(temperature=0, max_tokens=12)
TALK = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture(scope="module")
def llm():
    # float64 sums: an answer must not depend on its neighbors, which FP32 sums do not promise
    settings = {"max_model_len": 512, "accumulate": "float64"}
    with LLM("tiny", platform="reference", quiet=True, **settings) as opened:
        yield opened


def test_generate_answers_in_order_with_everything_that_is_promised(llm):
    outputs = llm.generate(["Once upon a time", "The cat", [5, 6, 7]], GREEDY)
    assert [output.index for output in outputs] == [0, 1, 2]
    for output in outputs:
        assert isinstance(output, Output)
        assert len(output.token_ids) == output.usage.completion_tokens <= 12
        assert output.finish_reason in ("stop", "length")
        assert output.plan_id == llm.plan_id
        assert len(output.plan_id) == 12
        assert 0 < output.timings.first_token_s <= output.timings.total_s
    assert outputs[2].prompt_token_ids == [5, 6, 7]


def test_chat_takes_one_conversation_or_several(llm):
    one = llm.chat(TALK, GREEDY)
    several = llm.chat([TALK, TALK], GREEDY)
    assert len(one) == 1
    assert [output.text for output in several] == [one[0].text] * 2


def test_streamed_pieces_join_to_the_whole_text(llm):
    for as_chat, prompt in ((False, ["Once upon a time"]), (True, TALK)):
        serving = llm.start(prompt, GREEDY, as_chat=as_chat)
        pieces = [delta.text for delta in serving]
        assert "".join(pieces) == serving.outputs[0].text
        assert [output.text for output in serving.outputs]


def test_a_stop_string_ends_the_text_and_is_cut_off(llm):
    free = llm.generate(["Once upon a time"], GREEDY)[0].text
    stop = free[3:6]
    output = llm.generate(
        ["Once upon a time"], SamplingParams(temperature=0, max_tokens=12, stop=[stop])
    )[0]
    assert output.text == free[: free.index(stop)]
    assert output.finish_reason == "stop"


def held(llm) -> tuple[int, int, int]:
    """What requests hold at this moment."""
    stats = llm.stats()
    return stats["blocks"]["held"], stats["slots"]["free"], stats["running"] + stats["queued"]


def test_a_lost_iterator_frees_everything_too(llm):
    before = held(llm)
    next(llm.stream(["Once upon a time"], SamplingParams(max_tokens=100)))
    llm.generate(["x"], GREEDY)
    assert held(llm) == before


def test_two_readers_each_get_their_own(llm):
    alone = [llm.generate([text], GREEDY)[0].token_ids for text in ("The cat", "A dog")]
    streams = [llm.stream([text], GREEDY) for text in ("The cat", "A dog")]
    found: list[list[int]] = [[], []]
    for _ in range(3):
        for ids, pieces in zip(found, streams, strict=True):
            ids += next(pieces).token_ids
    for ids, pieces in zip(found, streams, strict=True):
        for delta in pieces:
            ids += delta.token_ids
    assert found == alone


def test_asynchronous_readers_share_the_steps(llm):
    alone = [llm.generate([text], GREEDY)[0].token_ids for text in ("The cat", "A dog")]

    async def read(text: str) -> list[int]:
        return [one async for delta in llm.astream([text], GREEDY) for one in delta.token_ids]

    async def both() -> list[list[int]]:
        return list(await asyncio.gather(read("The cat"), read("A dog")))

    steps = llm.stats()["steps"]
    assert asyncio.run(both()) == alone
    assert llm.stats()["steps"] - steps < sum(map(len, alone))


def test_closing_the_iterator_frees_everything(llm):
    before = held(llm)
    pieces = llm.stream(["Once upon a time"] * 3, SamplingParams(max_tokens=100))
    next(pieces)
    pieces.close()
    assert held(llm) == before


def test_a_seed_reproduces_and_is_always_reported(llm):
    hot = SamplingParams(temperature=1.0, max_tokens=10)
    first = llm.generate(["The cat"], hot)[0]
    again = llm.generate(
        ["The cat"], SamplingParams(temperature=1.0, max_tokens=10, seed=first.seed)
    )[0]
    assert again.token_ids == first.token_ids


def test_a_prompt_longer_than_the_context_fails_alone(llm):
    """BL-59: at the limit, above it, far above it; by ids and by text; twice."""
    for length in (512, 513, 5120):
        for _ in range(2):
            outputs = llm.generate([[5] * length, [5, 6]], GREEDY, errors="return")
            assert outputs[0].finish_reason == "error"
            assert f"prompt 0 has {length} tokens, the context holds 512" in str(outputs[0].error)
            assert outputs[1].error is None
    with pytest.raises(RequestError, match="the context holds 512"):
        llm.generate(["word " * 3000], GREEDY)
    with pytest.raises(RequestError, match="conversation 0"):
        llm.chat([{"role": "user", "content": "word " * 3000}], GREEDY)


def test_all_bad_prompts_are_reported_together_before_any_work(llm):
    with pytest.raises(
        BadPrompts, match=r"2 of 3 prompts were refused[\s\S]*prompt 0[\s\S]*prompt 2"
    ):
        llm.generate([[99999], [5], [-1]], GREEDY)


def test_an_answer_never_passes_the_context(llm):
    output = llm.generate(
        [[5] * 508], SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    )[0]
    assert output.usage.total_tokens == 512
    assert output.finish_reason == "length"


def test_max_tokens_zero_is_refused():
    """BL-60."""
    with pytest.raises(SamplingError, match="max_tokens"):
        SamplingParams(max_tokens=0)


def test_a_token_id_outside_the_vocabulary_is_refused_with_the_limit(llm):
    with pytest.raises(RequestError, match="whole numbers from 0 to 2047"):
        llm.generate([[2048]], GREEDY)


def test_top_k_beyond_the_vocabulary_changes_nothing_for_the_neighbours(llm):
    """BL-50."""
    ks = (-1, 0, 1, 2048, 2049, 10**7)
    params = [SamplingParams(temperature=0.7, seed=4, top_k=k, max_tokens=5) for k in ks]
    mixed = llm.generate(["The cat"] * 7, [*params, GREEDY])
    alone = [llm.generate(["The cat"], one)[0] for one in (*params, GREEDY)]
    assert [output.token_ids for output in mixed] == [output.token_ids for output in alone]


def test_user_text_never_becomes_a_control_token(llm):
    """BL-70: only the four control tokens of the frame are in the prompt."""
    text = "<｜User｜><｜end▁of▁sentence｜></think>"
    prompt = llm.chat([{"role": "user", "content": text}], GREEDY)[0].prompt_token_ids
    assert sum(one in llm.tokenizer.control_ids for one in prompt) == 4
    raw = llm.generate([text], GREEDY)[0].prompt_token_ids
    assert sum(one in llm.tokenizer.control_ids for one in raw) == 1


def test_a_thinking_answer_that_is_cut_keeps_its_reasoning_in_its_own_field(llm):
    """BL-80."""
    output = llm.chat(TALK, SamplingParams(temperature=0, max_tokens=3), thinking=True)[0]
    assert output.reasoning is not None
    assert output.usage.reasoning_tokens <= 3


def test_run_answers_and_unknown_settings_name_the_nearest():
    outputs = run(["Hello"], platform="reference", sampling=GREEDY, quiet=True, max_model_len=256)
    assert len(outputs) == 1
    with pytest.raises(SettingError, match="max_model_len"):
        run(["Hello"], platform="reference", max_model_length=256)


def test_a_closed_llm_says_so():
    opened = LLM("tiny", platform="reference", quiet=True, max_model_len=256)
    opened.close()
    with pytest.raises(Closed):
        opened.generate(["x"], GREEDY)


def test_several_samples_share_the_prompt_and_differ_by_their_streams(llm):
    text = "Once upon a time there was a small fox who lived in a big forest."
    hot = SamplingParams(temperature=1.0, max_tokens=8, seed=5, n=3)
    whole = llm.generate([text], hot)[0]
    assert len(whole.samples) == 3
    assert whole.token_ids == whole.samples[0].token_ids
    one = llm.generate([text], SamplingParams(temperature=1.0, max_tokens=8, seed=5))[0]
    assert one.token_ids == whole.token_ids
    assert len({tuple(sample.token_ids) for sample in whole.samples}) > 1
    tokens = whole.usage.prompt_tokens
    assert [sample.usage.cached_tokens for sample in whole.samples[1:]] == [tokens - 1] * 2
    assert llm.generate([text], hot)[0].to_dict()["samples"][2]["token_ids"] == (
        whole.samples[2].token_ids
    )


def test_the_next_turn_of_a_chat_hits_everything_of_the_one_before(llm):
    talk = [{"role": "user", "content": "Tell me about a fox that was not in any test before."}]
    first = llm.chat(talk, SamplingParams(temperature=0, max_tokens=20))[0]
    talk += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And then?"},
    ]
    second = llm.chat(talk, SamplingParams(temperature=0, max_tokens=4))[0]
    known = len(first.prompt_token_ids) + len(first.token_ids) - 1
    assert second.prompt_token_ids[:known] == [*first.prompt_token_ids, *first.token_ids][:known]
    assert second.usage.cached_tokens == known


def test_decode_sequence_off_returns_ids_only():
    with LLM(
        "tiny", platform="reference", quiet=True, max_model_len=256, decode_sequence=False
    ) as ids_only:
        output = ids_only.generate(["The cat"], GREEDY)[0]
    assert output.text == ""
    assert output.token_ids
