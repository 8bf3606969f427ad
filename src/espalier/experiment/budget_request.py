"""What is asked of a pruning to a budget: checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from ..analysis.curves import parse_tolerance
from ..architectures.sites import STACKED
from ..core import distributed
from ..core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from ..pruning.repair import NONE
from ..selection.scopes import GLOBAL
from .budget import Budget, parse_budgets
from .budget_choice import SEARCHES, SUBLAYERS
from .method import Method, parse_method
from .prune_budget import BudgetOptions
from .session import SessionOptions

BOTH = "heads,neurons"
BUDGET_METHOD = "obs"  # it knows that a repair follows
UNREPAIRED_METHOD = "fisher"
LABEL_FREE = "kl"
OF_EVERY_PRUNING = {"repair", "tolerance", "overwrite"}
BUDGET_OPTIONS = [one.name for one in fields(BudgetOptions) if one.name not in OF_EVERY_PRUNING]


TOGETHER = ({"heads", "neurons"}, {"layers"}, {"attention", "ffn"})  # what one budget can be met by


class Request(NamedTuple):
    """Budgets, none for a tolerance; the method; how a budget is met; options of the session."""

    budgets: list[Budget]
    method: Method
    options: BudgetOptions
    session: dict[str, Any]


def is_together(target: str) -> bool:
    """Whether a budget can be met by these targets."""
    targets = target.split(",")
    return any(set(targets) <= each for each in TOGETHER) and len(set(targets)) == len(targets)


def is_plain(method: Method) -> bool:
    """Whether a method is a criterion with its options, which a budget can use."""
    study = (method.scope, method.step, method.every, method.trials or 1)
    return study == (GLOBAL, 1, None, 1) and not method.learned


def limited_target(method: str | None, target: str | None) -> str | None:
    """Return what a tolerance is met by in the way of a budget; None: by an order of its own."""
    if target is None:
        tried = [BOTH, "heads"] if method else [BOTH]  # gnorm, for one, scores no neurons
    else:
        tried = [target] if is_together(target) else []
    for one in tried:
        try:
            plain = method is None or all(is_plain(parse_method(method, each)) for each in one.split(","))
        except InvalidValueError:
            continue
        return one if plain else None
    return None


def parse_request(
    method: str | None,
    budgets: Mapping[str, Any],
    *,
    target: str,
    tolerance: float | str | None,
    repair: str | None,
    run: Path | None = None,
    remove: float | None = None,
    scope: str | None = None,
    epochs: int = 0,
    overwrite: bool = False,
    **more: Any,
) -> Request:
    """Return what was asked for; raise for what cannot be done."""
    parsed = parse_budgets(budgets)
    if not parsed and tolerance is None:
        raise InvalidValueError(
            "heads and neurons together need a budget: `macs`, `params`, `size`, `speedup`, `latency` or "
            "`tolerance`",
            "macs",
        )
    for name, value in {"remove": remove, "run": run, "scope": scope, "epochs": epochs or None}.items():
        if value is not None:
            more_training = "; train the result with espalier.recover" if name == "epochs" else ""
            raise InvalidValueError(
                f"a budget decides what is removed; leave `{name}` out{more_training}", name
            )
    if parsed and tolerance is not None:
        raise InvalidValueError(f"give one budget: `{parsed[0].kind}` or `tolerance`", "tolerance")
    targets = target.split(",")
    stacked = set(targets) <= set(STACKED)
    if not is_together(target):
        raise InvalidValueError(
            f"a budget is met by heads, by neurons or by {BOTH}, by layers, or by attention,ffn or one of "
            f"them; got {target!r}. For both kinds, prune what the first left by the second",
            "target",
        )
    usual = LABEL_FREE if stacked else UNREPAIRED_METHOD if repair == NONE else BUDGET_METHOD
    chosen, *_ = (parse_method(method or usual, one) for one in targets)
    if not is_plain(chosen):
        raise InvalidValueError(
            f"{chosen.label}: a budget takes a criterion and its options, without scope, step, every "
            "and trials, and no scores that are learned",
            "method",
        )
    chosen = chosen.for_trial(None if chosen.trials is None else 0, more.get("seed", 0))
    own: Any = {name: more.pop(name) for name in BUDGET_OPTIONS if name in more}
    for name in more:
        if name not in SessionOptions.__annotations__:
            raise UnknownNameError("option", name, [*BUDGET_OPTIONS, *SessionOptions.__annotations__], name)
    search = own.get("search")
    for name in ("search", "rearrange", "stage") if stacked else ():
        if own.get(name):
            raise InvalidValueError(f"layers go one by one, without `{name}`; leave it out", name)
    if search is not None and search not in SEARCHES:
        raise UnknownNameError("search", search, SEARCHES, "search")
    if search == SUBLAYERS and own.get("lookahead", 1) != 1:
        raise InvalidValueError("`search` by sublayers has no stages to look ahead from", "lookahead")
    if search == SUBLAYERS and (tolerance is not None or any(budget.timed for budget in parsed)):
        raise InvalidValueError(
            "`search` by sublayers begins anew for every budget it tries: give `macs`, `params` or `size`",
            "search",
        )
    if distributed.is_launched():
        raise UnsupportedError("a budget is met by one process; start one")
    if repair is not None:
        own["repair"] = repair
    limit = None if tolerance is None else parse_tolerance(tolerance)
    options = BudgetOptions(tolerance=limit, overwrite=overwrite, **own)
    return Request(parsed, chosen, options, more)
