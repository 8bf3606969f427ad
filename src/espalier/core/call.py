"""How the verb that runs now was called, a command or a call in Python, and calls spelled the same way."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

CALL: ContextVar[str] = ContextVar("CALL", default="")
COMMAND = "espalier "  # how a command begins
COLUMNS = ("text", "pair", "label")
SET = ("kind", "metric")  # of a task, which every command takes by --set
PARAMETER = re.compile(r"`([a-z][a-z_0-9]*)(?:=([^`]+))?`")  # `lr` or `kind="language"` in a message


def is_command() -> bool:
    """Whether the verb that runs now was typed as a command."""
    return CALL.get().startswith(COMMAND)


def spell(verb: str, model: Any, **given: Any) -> str:
    """Return a call that can be copied: a command if one is running, else Python. What is None is left out.

    Objects that live in memory appear by the names of their parameters.
    """
    named = {name: value for name, value in {"": model, **given}.items() if value is not None}
    if is_command():
        columns = {name: named.pop(name) for name in COLUMNS if name in named}
        named |= {"columns": ",".join(f"{k}={v}" for k, v in columns.items())} if columns else {}
        flags = {"": "", "folder": "-o ", **{name: f"--set {name}=" for name in SET}}
        flag = {name: flags.get(name, f"--{name.replace('_', '-')} ") for name in named}
        words = [flag[name] + shlex.quote(str(value)) for name, value in named.items()]
        return f"{COMMAND}{verb} {' '.join(words)}"
    shown = {name: _spelled(value) or name or "model" for name, value in named.items()}
    words = [f"{name}={value}" if name else value for name, value in shown.items()]
    return f"espalier.{verb}({', '.join(words)})"


def _spelled(value: Any) -> str:
    """Return a value as Python has it, or nothing for an object that lives in memory."""
    if isinstance(value, (str, Path)):
        return repr(str(value))
    return repr(value) if isinstance(value, (int, float)) else ""


def spell_parameters(message: str, flags: Mapping[str, str]) -> str:
    """Return a message in the words of a command: its parameters as `flags`, or as what `--set` takes."""
    extra = "--set " if "set_" in flags else ""

    def spelled(found: re.Match[str]) -> str:
        name, value = found[1], (found[2] or "").strip('"')
        if name in flags:
            return flags[name] + (f" {value}" if value and value != "True" else "")
        if value:
            return f"{extra}{name}={value}"
        if name in COLUMNS and "columns" in flags:
            return f"--columns {name}=NAME"
        return f"{extra}{name}" if name in SET else name

    return PARAMETER.sub(spelled, message)
