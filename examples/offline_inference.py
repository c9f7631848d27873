"""Answers prompts without a server: raw text, a chat, and a seed that reproduces.

In: a platform and a model. Out: answers on stdout; exit code 1 if the seeded runs differ.
Does not know: anything that `from deepinfer import ...` does not give.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from deepinfer import LLM, DeepInferError, SamplingParams

RAW = ["Once upon a time", "One cold morning"]
QUESTION = "Tell me a story about a fox and a lantern."


def main(arguments: Sequence[str] | None = None) -> int:
    """Loads a model once and asks it three kinds of things."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--platform", default="reference", help='"a+b" is a over b, or auto')
    parser.add_argument("--model", default="tiny", help="tiny, a folder, or a Hugging Face id")
    parser.add_argument("--max-tokens", type=int, default=48, help="longest answer")
    options = parser.parse_args(arguments)
    try:
        with LLM(options.model, platform=options.platform) as llm:
            return show(llm, options.max_tokens)
    except DeepInferError as error:
        print(f"offline_inference: {error}", file=sys.stderr)
        return error.exit_code


def show(llm: LLM, max_tokens: int) -> int:
    """The three kinds; 0 if the seed did reproduce."""
    greedy = SamplingParams(temperature=0, max_tokens=max_tokens)
    print("== raw text, greedy")
    for prompt, output in zip(RAW, llm.generate(RAW, greedy), strict=True):
        print(f"{prompt}{output.text}  [{output.finish_reason}]")

    print("\n== a chat, greedy")
    (answer,) = llm.chat([{"role": "user", "content": QUESTION}], greedy)
    print(answer.text)
    print(answer.summary)

    print("\n== one seed, two runs")
    seeded = SamplingParams(temperature=1.0, top_p=0.95, seed=7, max_tokens=max_tokens)
    first, second = (llm.generate(RAW[:1], seeded)[0] for _ in range(2))
    print(f"{RAW[0]}{first.text}")
    same = first.token_ids == second.token_ids
    print("the same tokens twice" if same else "the two runs differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
