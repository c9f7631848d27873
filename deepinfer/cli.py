"""The command line: every command is a few lines over the same functions that Python callers use.

In: words of a shell. Out: answers on stdout, progress and errors on stderr, an exit code
(0 good, 1 a check or comparison failed, 2 cannot run as asked, 130 interrupted).
Does not know: how anything is computed; heavy imports happen inside the commands.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from deepinfer.errors import CheckFailed, DeepInferError, UsageError
from deepinfer.settings import calm_threads

app = typer.Typer(
    help="DeepSeek-V4.1 inference whose hardware support is made of plugins.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

benches = typer.Typer(help="Measure what this version does.", rich_markup_mode=None)
app.add_typer(benches, name="bench")

Model = Annotated[str, typer.Option("--model", "-m", help="tiny, a folder, or a Hugging Face id")]
Platform = Annotated[str, typer.Option("--platform", "-p", help='"a+b" is a over b, or auto')]
Sets = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="a setting by its name; repeatable")
]
Config = Annotated[Path | None, typer.Option("--config", help="a deepinfer.toml")]
Json = Annotated[bool, typer.Option("--json", help="one JSON document and nothing else")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no summary")]
Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 is greedy")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="longest answer")]
Think = Annotated[str, typer.Option("--think", help="off, on, or an effort from 1 to 100")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `deepinfer` script."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    calm_threads()
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        command = typer.main.get_command(app)
        code = command.main(args=words, prog_name="deepinfer", standalone_mode=False)
    except typer.exceptions.TyperException as error:  # wrong option, missing argument
        words_of = getattr(error, "format_message", error.__str__)
        code = _say(words_of(), 2, debug)
    except typer.exceptions.Abort:
        code = 130
    except DeepInferError as error:
        code = _say(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # the reader has seen enough; a second failure at interpreter exit must not show
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except MemoryError:
        code = _say("the machine's memory is used up; use a smaller model or context", 2, debug)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"deepinfer: {message}", file=sys.stderr)
    return code


def _settings(platform: str, sets: Sequence[str], config: Path | None) -> dict[str, Any]:
    """Keywords for `LLM` and `Settings.load`."""
    from deepinfer.settings import assignments

    return {"platform": platform, "config": config, **assignments(sets)}


def _load_settings(platform: str, sets: Sequence[str], config: Path | None) -> Any:
    from deepinfer.settings import Settings

    given = _settings(platform, sets, config)
    return Settings.load({k: v for k, v in given.items() if k != "config"}, file=config)


@app.command()
def run(
    prompts: Annotated[list[str] | None, typer.Argument(help="prompts; - reads stdin")] = None,
    file: Annotated[
        Path | None, typer.Option(help="one prompt a line; *.jsonl: one request in JSON a line")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="answers to a *.jsonl, one a line; a killed run goes on")
    ] = None,
    model: Model = "tiny",
    platform: Platform = "auto",
    raw: Annotated[bool, typer.Option("--raw", help="continue the text, no chat")] = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 1.0,
    top_k: Annotated[int, typer.Option(help="-1 is off")] = -1,
    top_p: Annotated[float, typer.Option()] = 1.0,
    seed: Annotated[int | None, typer.Option(help="the same seed gives the same text")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="stop string; repeatable")] = None,
    think: Think = "off",
    system: Annotated[str | None, typer.Option(help="a system message")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="write a trace of steps, for Perfetto or chrome://tracing")
    ] = None,
    sets: Sets = [],  # noqa: B006  typer copies it
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Answer prompts; one prompt is streamed as it comes."""
    from deepinfer.sample.params import SamplingParams
    from deepinfer.terminal import answer_all, read_prompts, stream_one, thinking_options

    given = _settings(platform, sets, config) | ({} if trace is None else {"trace": trace})
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_tokens=max_tokens,
        seed=seed,
        stop=stop or [],
    )
    if out is not None or (file is not None and file.suffix == ".jsonl"):
        words = {"--raw": raw, "--think": think != "off", "--system": system, "--json": as_json}
        return _run_jobs(prompts, file, out, params, words, {"model": model, **given}, quiet)
    texts = read_prompts(prompts or [], file)
    options = {} if raw else thinking_options(think)
    from deepinfer.llm import LLM

    with LLM(model, quiet=quiet or as_json, **given) as llm:
        if len(texts) == 1 and not as_json:
            stream_one(llm, texts[0], params, raw, system, options, quiet)
        else:
            answer_all(llm, texts, params, raw, system, options, as_json, quiet)


def _run_jobs(
    prompts: list[str] | None,
    file: Path | None,
    out: Path | None,
    params: Any,
    words: dict[str, Any],
    given: dict[str, Any],
    quiet: bool,
) -> None:
    """`run --file requests.jsonl`: what waits in the file, answered line by line."""
    from deepinfer.jobs import opened, stated

    if file is None:
        raise UsageError("--out needs --file, a file with one request in JSON a line")
    if prompts:
        raise UsageError("prompts and --file were both given; write the prompts into the file")
    for word in (word for word, is_given in words.items() if is_given):
        raise UsageError(f"{word} cannot go with a file of requests: each line says what it wants")
    with opened(file, out, stated(params)) as jobs:
        if jobs.left != 0:
            from deepinfer.llm import LLM

            with LLM(**given, quiet=quiet) as llm, _job_bar(jobs.left, out, quiet) as told:
                jobs.answer(llm, told)
        if not quiet:
            print(jobs.summary, file=sys.stderr)
        if jobs.missing:
            raise CheckFailed(f"{jobs.missing} requests have no answer; run the command again")
        if jobs.failed:
            raise CheckFailed(f'{jobs.failed} lines failed; their answers say why in "error"')


@contextmanager
def _job_bar(total: int | None, out: Path | None, quiet: bool) -> Iterator[Callable[[Any], None]]:
    """A function to call after every line: a bar on a terminal, plain lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    if quiet or (out is None and sys.stdout.isatty()):  # there the answers show how far it is
        yield lambda jobs: None
    elif not sys.stderr.isatty():
        step = max((total or 10_000) // 10, 1)

        def plain(jobs: Any) -> None:
            if jobs.ended % step == 0:
                of = "" if total is None else f" of {total}"
                print(f"answering: {jobs.ended}{of}, {jobs.rates}", file=sys.stderr, flush=True)

        yield plain
    else:
        columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn())
        rates, console = TextColumn("{task.description}"), Console(file=sys.stderr)
        with Progress(*columns, rates, console=console, redirect_stdout=False) as progress:
            task = progress.add_task("", total=total)
            yield lambda jobs: progress.update(task, advance=1, description=jobs.rates)


@app.command()
def chat(
    model: Model = "tiny",
    platform: Platform = "auto",
    max_tokens: MaxTokens = None,
    temperature: Temperature = 1.0,
    think: Think = "off",
    system: Annotated[str | None, typer.Option(help="a system message")] = None,
    sets: Sets = [],  # noqa: B006  typer copies it
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Talk with the model; /help lists the commands."""
    from deepinfer.llm import LLM
    from deepinfer.sample.params import SamplingParams
    from deepinfer.terminal import Conversation, thinking_options

    params = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    options = thinking_options(think)
    with LLM(model, **_settings(platform, sets, config)) as llm:
        Conversation(llm, params, options, system).talk()


@app.command()
def plan(
    model: Model = "tiny",
    platform: Platform = "auto",
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="two platform strings or plan files; 1 if they differ"),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="the bytes of one rank instead of its kernels")
    ] = False,
    ranks: Annotated[int, typer.Option(help="with --memory: ranks that share the experts")] = 1,
    memory_bytes: Annotated[
        int | None, typer.Option(help="with --memory: bytes of a device, instead of this one's")
    ] = None,
    sets: Sets = [],  # noqa: B006  typer copies it
    config: Config = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show which kernel serves which operator, and why the others do not; nothing is loaded."""
    from deepinfer.plugin.plan import Plan
    from deepinfer.plugin.plan import diff as differences

    if memory:
        _plan_memory(model, _load_settings(platform, sets, config), ranks, memory_bytes, as_json)
        return

    def planned(word: str) -> Plan:
        if Path(word).is_file():
            return Plan.from_json(Path(word).read_text())
        from deepinfer.open import plan_model

        return plan_model(model, _load_settings(word, sets, config)).planned.plan

    if diff is None:
        chosen = planned(platform)
        print(chosen.to_json() if as_json else chosen)
        return
    lines = differences(planned(diff[0]), planned(diff[1]))
    print(json.dumps(lines, indent=2) if as_json else "\n".join(lines or ["the plans are equal"]))
    if lines:
        raise CheckFailed(f"{len(lines)} differences between {diff[0]} and {diff[1]}")


def _plan_memory(
    model: str, settings: Any, ranks: int, memory_bytes: int | None, as_json: bool
) -> None:
    """`plan --memory`: the ledger, or why it does not fit."""
    from deepinfer.ledger.ask import of_model
    from deepinfer.ledger.table import checked, text, values

    ledger, title = of_model(model, settings, ranks, memory_bytes)
    if as_json:
        print(json.dumps(values(ledger), indent=2))
    checked(ledger, title)
    if not as_json:
        print(f"{title}\n\n{text(ledger)}")


@app.command()
def explain(
    op: Annotated[str, typer.Argument(help="an operator, such as attention.sparse_decode")],
    model: Model = "tiny",
    platform: Platform = "auto",
    sets: Sets = [],  # noqa: B006  typer copies it
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Show one operator: its contract, who serves it, who was passed over and why."""
    from deepinfer.open import plan_model
    from deepinfer.ops.catalogue import CATALOGUE

    settings = _load_settings(platform, sets, config)
    chosen = plan_model(model, settings).planned.plan
    text = chosen.explain(op)
    print(f"{CATALOGUE[op].signature}\n{CATALOGUE[op].doc}\n\n{text}")


@benches.command()
def engine(
    model: Model = "official",
    platform: Platform = "null",
    running: Annotated[int, typer.Option(min=1, help="requests that run at once")] = 256,
    steps: Annotated[int, typer.Option(min=1, help="steps that are measured")] = 200,
    traffic: Annotated[str, typer.Option(help="decode, prefix or samples")] = "decode",
    ahead: Annotated[bool, typer.Option(help="plan a step while one runs")] = False,
    streams: Annotated[bool, typer.Option(help="hand out every token at once")] = True,
    captured: Annotated[bool, typer.Option(help="a hollow step costs one call")] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """How long the host works on a step: planning, arrays, handing tokens out."""
    from deepinfer.testing.hosttime import measure

    found = measure(
        running, model=model, platform=platform, traffic=traffic, steps=steps, ahead=ahead,
        streams=streams, captured=captured,
    )  # fmt: skip
    print(json.dumps(found.to_dict(), indent=2) if as_json else found)


@app.command()
def doctor(
    sets: Sets = [],  # noqa: B006  typer copies it
    config: Config = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Look at the installation: platforms, devices, packages, settings. Needs no model."""
    from deepinfer.plugin import Finding
    from deepinfer.plugin.doctor import examine

    settings = _load_settings("auto", sets, config)
    said = [
        Finding("ok", name, f"{value}, from {origin}") for name, value, origin in settings.said()
    ]
    report = examine(said)
    print(report.to_json() if as_json else report)
    raise typer.Exit(report.exit_code)


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="a folder, tiny, or a Hugging Face id")],
    values: Annotated[bool, typer.Option("--values", help="read every value too")] = False,
    sets: Sets = [],  # noqa: B006  typer copies it
    config: Config = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a checkpoint's files, names, shapes and sizes; 1 if anything is wrong."""
    from deepinfer.model.locate import find_model
    from deepinfer.model.shards import check as check_files

    settings = _load_settings("auto", sets, config)
    folder = find_model(model, hf_model_dir=settings.hf_model_dir, revision=settings.revision)
    report = check_files(folder, verify_values=values)
    if as_json:
        findings = [str(finding) for finding in report.findings]
        print(json.dumps({"folder": str(folder), "ok": report.ok, "findings": findings}, indent=2))
        raise typer.Exit(0 if report.ok else 1)
    report.raise_if_bad()
    print(report)


@app.command()
def golden(
    folder: Annotated[Path, typer.Argument(help="a folder laid out like tests/golden/tiny_a")],
    platform: Platform = "reference",
    accumulate: Annotated[str, typer.Option(help="float32 or float64 for variant f")] = "float64",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare a platform with recorded results of the official reference; 1 beyond tolerance."""
    from deepinfer.testing.golden import compare

    _load_settings(platform, [f"accumulate={accumulate}"], None)
    report = compare(folder, platform, accumulate)
    print(report.to_json() if as_json else report)
    raise typer.Exit(0 if report.is_good else 1)


@app.command(name="eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="tiny, or a folder with an evaluation set")] = "tiny",
    platform: Platform = "reference",
    task: Annotated[list[str] | None, typer.Option(help="only this task; repeatable")] = None,
    limit: Annotated[int | None, typer.Option(help="items per task")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a few items of the short tasks")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Repeat the recorded evaluation with the engine; 1 if a task falls below its gate."""
    from deepinfer.testing.evaluate import evaluate as run_tasks

    settings = _load_settings(platform, [], None)
    report = run_tasks(model, settings.platform, task or [], limit, quick)
    print(report.to_json() if as_json else report)
    raise typer.Exit(0 if report.is_good else 1)


if __name__ == "__main__":
    main()
