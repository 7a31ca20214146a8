"""`rolegate sft tables`: make tables with known right rows, for training and evaluation.

1. The seeds are documents, or requests for tables. They are read from a file, or passages are
   sampled from the config's index. The model of `[synthesis]` writes a request for a table about
   each seed that is a document.
2. Each request is answered twice, independently: with another random seed, or with another config,
   such as one with other documents or another executor.
3. The answers are compared cell by cell. If they agree well enough, the table is kept, without the
   rows and cells in which they differ. All other tables are counted under the reason.

tasks.jsonl, gold/ID.csv   the tables in WideSearch's form
questions.jsonl            the same tables for `rolegate sft`
scores.jsonl               how far the answers agree, and why a table is not kept
seeds.jsonl, queries.jsonl, answers.jsonl   the results of the steps

Two answers from the same documents miss the same rows. So agreement is evidence for the cells, but
not for a table's completeness. After an interruption, the same command resumes, and no model call
is paid for twice.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from executor_sft.asking import failures
from executor_sft.command import Count, StepOptions, agreed, show
from executor_sft.evaluate import filled_table
from executor_sft.jsonl import read_jsonl, write_jsonl
from executor_sft.questions import HeldOut, Question, read_questions
from executor_sft.rollout import ADVICE, roll_out_all
from executor_sft.runtime import BASE, Runtime, adapter_files, named_adapters, open_runtime
from executor_sft.step import Step, config_settings
from executor_sft.tables.agreement import Answer, Answers, made_tables, unusable
from executor_sft.tables.output import write_tables
from executor_sft.tables.synthesis import ROWS, written_request
from router.errors import BadConfig
from serving.config.config import Config
from serving.config.file import load_config
from serving.retrieval.manifest import read_manifest
from serving.retrieval.passages import PassageStore
from serving.terminal import complain, progress_bar

_SEEDS = "seeds.jsonl"
_QUERIES = "queries.jsonl"
ANSWERS = "answers.jsonl"
_SCORES = "scores.jsonl"
_RULES = ("consistency", "min_rows", "support")
"""Names of the options that decide which tables are kept."""
_CHARS_PER_TOKEN = 4
_Part = Annotated[float, Meta(ge=0, le=1)]


class Options(StepOptions):
    """Options of `rolegate sft tables`."""

    config: Path
    seeds: Path | None = None
    """file of seeds (JSON lines): documents with title and text, or requests for tables with
    question and columns (default: sample passages of the config's index)
    """
    second: Path | None = None
    """config file for the second answer to each request (default: the same config for both answers,
    with different random seeds)
    """
    executor: str = BASE
    """executor that fills the tables: base (the config's executor), or the folder of a LoRA adapter
    for it
    """
    exclude: tuple[Path, ...] = ()
    """files of held-out questions (JSON lines); leave out requests that are the same as, or nearly
    the same as, a held-out question
    """
    consistency: _Part = 0.9
    """keep a table only if the two answers to its request agree in at least this share of the
    cells, from 0 to 1, computed as F1
    """
    min_rows: Count = 3
    """keep a table only if it has at least this many rows"""
    support: _Part = 0.8
    """keep a table only if at least this share of its cells, from 0 to 1, has a value that occurs
    in a passage
    """
    limit: Count = 100
    """max number of seeds to use, and so of tables"""
    temperature: Annotated[float, Meta(gt=0, le=2)] = 0.7
    """sampling temperature of all roles that answer"""
    purpose: Literal["rlinf"] | None = msgspec.field(default=None, name="for")
    """rlinf: also write rlinf.jsonl, a data set for training with RLinf as WideSeek-R1 was trained
    (default: do not write it)
    """
    leave_failed: bool = False
    """finish even if tables failed (default: stay unfinished, and the same command tries the failed
    tables again)
    """
    concurrency: Count = 4
    """number of requests to work on at the same time"""
    yes: bool = False
    """start without asking for confirmation of the cost"""


def run(options: Options) -> int:
    """Run the command and return the exit status: 1 if the user did not confirm the cost, or if
    tables failed.
    """
    config = load_config(options.config)
    configs = [config, *([load_config(options.second)] if options.second else [])]
    file = options.out / _SEEDS
    known = file.exists()
    seeds = list(read_jsonl(file, Question, ADVICE)) if known else _seeds(config, options)
    if config.synthesis is None and not all(seed.table for seed in seeds):
        raise BadConfig(
            "synthesis: is not set, and not all seeds have a question and columns; add a table "
            "[synthesis] with model, prompt, and base_url or engine."
        )
    rows = 2 * sum(len(seed.rows) or sum(ROWS) // 2 for seed in seeds)
    # A row takes about one sub-query, which is two calls. The second call has the passages of a
    # search
    prompt = Path(config.roles.execution.prompt).read_text("utf-8")
    passages = config.search.top_k * config.retrieval.chunk_tokens
    tokens = rows * (passages + 2 * len(prompt) // _CHARS_PER_TOKEN)
    cost = f"Answer {len(seeds)} requests twice (about {rows} rows, {tokens:,} tokens or more)?"
    if not (known or options.yes or agreed(cost)):
        return 1

    inputs = {f"exclude {path}": path for path in options.exclude}
    inputs |= adapter_files(named_adapters([options.executor]))
    if options.seeds:
        inputs["seeds"] = options.seeds
    settings = options.settings("limit", "temperature", "purpose", *_RULES)
    settings["configs"] = [
        config_settings(config, {"synthesis": config.synthesis}) for config in configs
    ]
    step = Step.begin(options.out, "tables", inputs, settings)
    if (manifest := step.finished) is None:
        if not known:
            write_jsonl(file, seeds)
        reasons, failed = asyncio.run(_answered(configs, options, seeds))
        if failed and not options.leave_failed:
            show({"failed": failed}, as_json=options.json)
            complain(
                "Some tables failed. Run the same command to try them again, or add --leave-failed."
            )
            return 1
        figures, files = _written(options, reasons)
        manifest = step.finish({**figures, "failed": failed}, files)
    show(manifest.figures, as_json=options.json)
    return 0


def _seeds(config: Config, options: Options) -> list[Question]:
    """Return the seeds: the lines of the file --seeds, or else passages sampled from the index.
    Raises `BadConfig` or `BadIndex` if no seeds can be read.
    """
    if options.seeds:
        seeds, duplicates = read_questions(options.seeds, tables=True, seeds=True)
        if duplicates:
            complain(f"{options.seeds}: left out {duplicates} duplicate seeds.")
        return seeds[: options.limit]
    if config.retrieval.index is None:
        raise BadConfig("retrieval.index: is not set, so there is nothing to sample; give --seeds.")
    index = Path(config.retrieval.index)
    passages = PassageStore(index / read_manifest(index).generation)
    chosen = random.Random(0).sample(range(len(passages)), min(options.limit, len(passages)))
    sampled = [passages[at] for at in chosen]
    return [Question(page.id, f"{page.title}\n{page.text}", ()) for page in sampled]


async def _answered(
    configs: Sequence[Config], options: Options, seeds: Sequence[Question]
) -> tuple[Counter[str], dict[str, str]]:
    """Write the requests, answer each twice, and store requests and answers in files. Return two
    mappings: from each reason to the number of requests that were not answered for it, and from the
    id of each failed seed to its error message.
    """
    adapters = named_adapters([options.executor])
    (executor,) = adapters
    async with AsyncExitStack() as stack:
        runtimes = []
        for number, config in enumerate(configs, start=1):
            opened = open_runtime(
                config,
                complain,
                cache=options.out / f"calls_{number}.jsonl",
                adapters=adapters,
                extra_roles={"synthesis": config.synthesis} if config.synthesis else {},
            )
            runtimes.append(await stack.enter_async_context(opened))
        bar = stack.enter_context(progress_bar())
        task = bar.add_task("making tables", total=2 * len(seeds))
        advance = partial(bar.advance, task)

        synthesis = configs[0].synthesis
        role = runtimes[0].role("delegation", synthesis) if synthesis else None
        written = dict[str, Question]()

        async def write(seed: Question) -> None:
            written[seed.id] = await written_request(role, runtimes[0].context, seed)

        unwritten = await failures(
            write,
            seeds,
            options.concurrency,
            advance,
            name=lambda seed: seed.id,
            so_far=lambda count: f"{count} requests are written",
        )
        requests = [written[seed.id] for seed in seeds if seed.id in written]
        write_jsonl(options.out / _QUERIES, requests)
        held_out = HeldOut.read(options.exclude)
        reasons = {request.id: unusable(request, held_out) for request in requests}
        reasons |= dict.fromkeys(unwritten, "request could not be written")
        sampled = [
            runtime.sampled(number, options.temperature).with_versions(executor, BASE)
            for number, runtime in enumerate((runtimes[0], runtimes[-1]))
        ]
        failed = await roll_out_all(
            partial(_twice, sampled),
            [request for request in requests if not reasons[request.id]],
            options.out / ANSWERS,
            options.concurrency,
            advance,
            kind=Answers,
        )
    return Counter(filter(None, reasons.values())), unwritten | failed


async def _twice(runtimes: Sequence[Runtime], question: Question) -> Answers:
    answers = []
    for runtime in runtimes:
        table, sub_agents, tokens = await filled_table(runtime, runtime.executor(), question)
        rows = tuple(tuple(cell.value for cell in row.cells) for row in table.rows)
        answers.append(Answer(rows, sub_agents, tokens))
    return Answers(question, (answers[0], answers[1]))


def _written(options: Options, reasons: Counter[str]) -> tuple[dict[str, Any], list[str]]:
    """Compare the answers and write the kept tables. Return the figures, and the names of the
    files. `reasons`: number of requests without answers for each reason. The tables that are not
    kept are added to it.
    """
    answered = list(read_jsonl(options.out / ANSWERS, Answers, ADVICE))
    tables = list(made_tables(answered, **options.settings(*_RULES)))
    reasons.update(table.reason for table in tables if table.reason)
    write_jsonl(options.out / _SCORES, tables)
    kept = [table for table in tables if not table.reason]
    made = [table.question for table in kept]
    files = write_tables(options.out, made, rlinf=options.purpose == "rlinf")
    tokens = sum(answer.tokens for pair in answered for answer in pair.answers)
    figures = {
        "kept": len(kept),
        "rows": sum(len(question.rows) for question in made),
        "rows_dropped": sum(table.dropped for table in kept),
        "cells_blanked": sum(table.blanked for table in kept),
        "tokens_per_kept_table": tokens / len(kept) if kept else None,
        "not_kept": dict(reasons),
    }
    return figures, [_SEEDS, _QUERIES, ANSWERS, _SCORES, *files]
