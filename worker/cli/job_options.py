"""The options that are fields of a job, for the commands that make jobs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import click

from worker.cli.options import SchemaFile, TextFile
from worker.cli.prompts import parse_metadata
from worker.errors import InvalidJob

P = ParamSpec("P")
R = TypeVar("R")

JOB_OPTIONS = (
    click.option("--tenant", help="Whose jobs these are; prefixes are cached apart for each."),
    click.option(
        "--share-prefix", is_flag=True, default=None, help="Cache the prompt for all tenants that say so too."
    ),
    click.option("--model", help="The model to answer; default: the worker's."),
    click.option("--system", help="System message before the prompt."),
    click.option("--raw", is_flag=True, default=None, help="Send the text as it is, without the chat template."),
    click.option("--max-tokens", type=int, help="Longest output.  [default: 256]"),
    click.option("--min-tokens", type=int, help="Shortest output."),
    click.option("--temperature", type=float, help="0 is greedy.  [default: 0]"),
    click.option("--top-k", type=int),
    click.option("--top-p", type=float),
    click.option("--min-p", type=float),
    click.option("--presence-penalty", type=float, help="Taken off tokens that are in the output already."),
    click.option("--frequency-penalty", type=float, help="Taken off for each time that a token is in the output."),
    click.option(
        "--repetition-penalty", type=float, help="Above 1: known tokens, the prompt's too, become less likely."
    ),
    click.option("--regex", help="The output matches this regular expression."),
    click.option(
        "--grammar",
        type=TextFile(),
        metavar="FILE",
        help="The output follows the file's grammar: Lark, as llguidance has it.",
    ),
    click.option(
        "--json-schema",
        "response_format",
        type=SchemaFile(),
        metavar="FILE",
        help="The output follows it.",
    ),
    click.option(
        "--logit-bias",
        multiple=True,
        metavar="ID=BIAS",
        help="Added to the logit of a token, by its id: -100 to 100; may be repeated.",
    ),
    click.option("--logprobs", is_flag=True, default=None, help="Keep the log-probability of each output token."),
    click.option("--top-logprobs", type=int, help="And of that many of the most likely tokens."),
    click.option(
        "--prompt-logprobs", type=int, help="Keep those of the prompt's tokens, with so many of the likeliest."
    ),
    click.option("--return-token-ids", is_flag=True, default=None, help="Give the ids of prompt and output too."),
    click.option("--echo", is_flag=True, default=None, help="Give the prompt back before the output (with --raw)."),
    click.option("--n", type=int, help="Outputs of the one prompt.  [default: 1]"),
    click.option("--best-of", type=int, help="Generate so many, keep the --n whose tokens are likeliest on average."),
    click.option("--seed", type=int, help="Default: derived from the job's id."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated."),
    click.option("--stop-token-id", "stop_token_ids", multiple=True, type=int, help="May be repeated."),
    click.option("--ignore-eos", is_flag=True, default=None, help="Go on after the model's end token."),
    click.option(
        "--keep-special-tokens",
        "skip_special_tokens",
        flag_value=False,
        type=bool,
        default=None,
        help="Keep tokens such as <|im_end|> in the output's text.",
    ),
    click.option("--max-retries", type=int, help="Attempts after the first, where an error may pass.  [default: 2]"),
    click.option("--custom-id", help="Your own name for the job."),
    click.option("--metadata", multiple=True, metavar="NAME=VALUE", help="Kept with the job; may be repeated."),
)


def job_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the options of `JOB_OPTIONS`."""
    for option in reversed(JOB_OPTIONS):
        command = option(command)
    return command


def given_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as fields of a job. Raises InvalidJob."""
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    if "metadata" in given:
        given["metadata"] = parse_metadata(given["metadata"])
    if "logit_bias" in given:
        given["logit_bias"] = _parse_biases(given["logit_bias"])
    return given


def _parse_biases(pairs: Iterable[str]) -> dict[str, float]:
    """Return ID=BIAS pairs as a mapping. Raises InvalidJob for one that is none."""
    biases: dict[str, float] = {}
    for pair in pairs:
        token_id, _, bias = pair.partition("=")
        try:
            biases[token_id] = float(bias)
        except ValueError:
            raise InvalidJob("logit_bias", f"{pair!r} is not ID=BIAS") from None
    return biases
