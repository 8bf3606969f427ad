"""The program, every verb of which is a file in this folder, and keywords typed as NAME=VALUE."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, cast

import typer
import typer.core

from ..core.terminal import visible

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results and errors only.", rich_help_panel="More")
]
QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
ORDER = "look train score compare watch report prune recover evaluate measure export encode decode run"
POSITIONAL = ("model", "task", "method", "methods", "folder")  # passed to the API by place


class StoppedError(BaseException):
    """An interruption, which is its cause, on its way out."""


@contextmanager
def quietly(chosen: bool) -> Iterator[None]:
    """Print results and errors only."""
    token, log = QUIET.set(chosen), logging.getLogger("espalier")
    before = log.level
    if chosen:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
        QUIET.reset(token)


class Examples:
    """Help that ends with the examples of an epilog, one a line; only the terminal wraps them."""

    epilog: str | None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        given, self.epilog = self.epilog, None
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        finally:
            self.epilog = given
        if given:
            text = "\n   ".join(["\n Examples:", *given.removeprefix("Examples: ").split(" · ")])
            (formatter.write if formatter.getvalue() else typer.echo)(text)  # what rich shows is out already


class Verb(Examples, typer.core.TyperCommand):
    """One verb."""


class Program(typer.Typer):
    """The program: every verb of it also has --quiet."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def call(*args: Any, quiet: bool, **given: Any) -> Any:
                with quietly(quiet):
                    return function(*args, **given)

            known, found = signature(function, eval_str=True), cast(Any, call)
            last = Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
            found.__signature__ = known.replace(parameters=[*known.parameters.values(), last])
            found.__annotations__ = {name: p.annotation for name, p in found.__signature__.parameters.items()}
            register = super(Program, self).command
            register(name, cls=Verb, **options)(call)
            return function

        return add


class Verbs(Examples, typer.core.TyperGroup):
    """All verbs: an interruption says what is kept, and what is wrong in a command is shown, not sent."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List them in the order of the work, not of the alphabet."""
        place = {name: i for i, name in enumerate(ORDER.split())}
        return sorted(super().list_commands(ctx), key=lambda name: place.get(name, len(place)))

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _endings():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _endings():
            return super().invoke(ctx)


@contextmanager
def _endings() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:  # typer would end it without a word
        raise StoppedError from error
    except Exception as error:
        typed: Any = error
        if hasattr(error, "format_message"):  # a mistake in what was typed, whichever click typer brings
            typed.message = visible(str(typed.message))
        raise


app = Program(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Make transformers smaller: train, score, prune, compare, measure, report and ship them.",
    epilog="Examples: espalier look google-bert/bert-base-uncased · espalier train minilm --task demo · "
    "espalier compare tuned --task demo -o run · espalier prune tuned --task demo --tolerance 0.01 -o small",
)
check_app = Program(no_args_is_help=True, help="Check an architecture, a criterion or gradients.")
app.add_typer(check_app, name="check")


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        from .. import __version__

        typer.echo(f"espalier {__version__}")
        raise typer.Exit


def named(text: str, flag: str) -> dict[str, str]:
    """Return {"text": "review"} of `text=review,label=stars`."""
    found = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = piece.partition("=")
        if not equals or not value:
            raise typer.BadParameter(f"{flag} takes NAME=VALUE with commas between; got {piece!r}")
        found[name.strip()] = value.strip()
    return found


def further(columns: str, words: list[str] | None, **given: Any) -> dict[str, Any]:
    """Return all keywords for the API: columns and `--set` beside those typed as options."""
    from ..experiment.method import parse_value

    known = {"text", "pair", "label"}
    chosen = named(columns, "--columns")
    if unknown := set(chosen) - known:
        raise typer.BadParameter(f"--columns names {', '.join(sorted(known))}; got {min(unknown)!r}")
    pairs = [named(word.replace(",", "\0"), "--set") for word in words or ()]
    extra = {
        k.replace("-", "_"): parse_value(v.replace("\0", ",")) for pair in pairs for k, v in pair.items()
    }
    if twice := set(extra) & {*given, *chosen, *POSITIONAL}:
        name = min(twice)
        raise typer.BadParameter(f"--set {name}: this is an option of its own, --{name.replace('_', '-')}")
    return {**given, **chosen, **extra}


def whole_numbers(text: str, flag: str) -> list[int]:
    """Return [1, 8] of `1,8`."""
    try:
        return [int(piece) for piece in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{flag} takes whole numbers with commas between; got {text!r}") from None


def numbers(text: str, flag: str) -> dict[str, float]:
    """Return {"temperature": 2.0} of `temperature=2`."""
    try:
        return {name: float(value) for name, value in named(text, flag).items()}
    except ValueError:
        raise typer.BadParameter(f"{flag} takes NAME=NUMBER with commas between; got {text!r}") from None
