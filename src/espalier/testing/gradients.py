"""Are the gradients that heads are ranked by sound: there, right, and told apart by the arithmetic?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.batches import Batches
from ..core.errors import EspalierError
from ..engine.gates import quiet
from ..engine.gradient_norms import gradient_norms
from .differences import gradient_errors
from .regrouping import Batch, alone, together

ROLES = ("q", "k", "v")
AGREE = 1e-4  # relative error up to which a difference of values confirms a gradient
SAME = 1e-9  # relative difference of two products below which they are a tie
NOISE = 1e-5  # and below which another machine may order them otherwise
STEADY = 0.999  # Kendall's tau of two orders that are the same but for rounding
FEWER = 3  # examples that differences are taken on: each costs two passes per block
SHOWN = 5  # heads named in a sentence; all of them are in the numbers


@dataclass(frozen=True)
class Finding:
    """One question, its answer, and what to do about it."""

    name: str
    ok: bool
    means: str
    advice: str = ""
    serious: bool = False  # espalier's own scores suffer, not only those of simpler arithmetic
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return "ok" if self.ok else "look"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, which has no infinity."""
        numbers = {k: None if v in (inf, -inf) else v for k, v in self.numbers.items()}
        return {**asdict(self), "verdict": self.verdict, "numbers": numbers}


def diagnose(
    model: Any,
    sites: Sequence[Any],
    batches: Batches,
    *,
    few: int = 8,
    sample: int = 12,
    seed: int = 0,
) -> list[Finding]:
    """Questions to the Q, K and V gradients of the logits' norm, the ones gnorm ranks heads by.

    `few` examples are put into batches anew; differences are taken for `sample` heads, on fewer still.
    """
    heads = [site for site in sites if site.target == "heads" and site.units]
    if not heads:
        raise EspalierError("there are no heads here whose gradients could be looked at")
    if not batches:
        raise EspalierError("gradients need calibration data: give some batches")
    singles = alone(batches)
    every = max(1, len(singles) // few)  # so that all lengths are among them: batches may be sorted
    some = singles[::every][:few]
    padding = getattr(model.config, "pad_token_id", None) or 0
    one = together(some, padding=padding)
    names = [f"{site.name} {unit}" for site in heads for unit in range(site.units)]
    with quiet(model):
        norms = _norms_by_example(model, heads, batches)
        present = _present(norms, names)
        if present.serious:  # there is nothing to rank, so nothing more to ask
            return [present]
        taus = _taus(model, heads, some, one)
    logs = norms.log().sum(0)
    errors = gradient_errors(
        model, heads, together(some[:FEWER], padding=padding), _each_norm, sample=sample, seed=seed
    )
    return [
        present,
        _right(errors, model),
        _products(norms, names),
        _ranking(norms, logs),
        _ties(logs),
        _batches(taus),
    ]


def _present(norms: Tensor, names: Sequence[str]) -> Finding:
    """Does every head have a gradient, and is it a number?"""
    wild, zero = _where(~norms.isfinite(), names), _where(norms == 0, names)
    numbers = {"heads": len(names), "not_finite": wild, "zero": zero}
    means, advice = f"all {len(names)} heads have finite gradients in q, k and v", ""
    if wild:
        means = f"gradients that are not finite: {_listed(wild)}"
        advice = "Load the model in float32, and look for texts without a token in them"
    elif zero:
        means = f"no gradient, so gnorm removes these first: {_listed(zero)}"
        advice = "Without any (q, k, v) a head does nothing to these texts; with one it may: see --by taylor"
    return Finding("gradients", not advice, means, advice, bool(wild), numbers)


def _right(errors: Mapping[str, float | None], model: Any) -> Finding:
    """Does the objective change as the gradient says, when a block moves along it?"""
    seen = {key: error for key, error in errors.items() if error is not None}
    worst = max(seen, key=lambda key: seen[key], default=None)
    numbers = {
        "compared": len(seen),
        "too_small": len(errors) - len(seen),
        "worst": worst,
        "worst_error": None if worst is None else seen[worst],
    }
    if worst is None:
        means = "every gradient that was tried is too small to be seen in a difference of values"
        return Finding("differences", False, means, "Try other texts", False, numbers)
    ok = seen[worst] <= AGREE
    means = f"{len(seen)} gradients against central differences: relative error at most {seen[worst]:.1e}"
    advice = "" if ok else f"{worst} is wrong: espalier check architecture {model.config.model_type}"
    return Finding("differences", ok, means, advice, not ok, numbers)


def _products(norms: Tensor, names: Sequence[str]) -> Finding:
    """Would the plain product of three norms survive float32?"""
    whole = (norms > 0).all(0) & norms.isfinite().all(0)
    product = torch.from_numpy(_float32(norms))
    lost = whole & (product == 0)
    rough = whole & (product > 0) & (product < torch.finfo(torch.float32).tiny)
    least = norms[:, whole].log10().sum(0)
    numbers = {
        "underflow": [names[i] for i in lost.nonzero().flatten()],
        "subnormal": [names[i] for i in rough.nonzero().flatten()],
        "smallest_log10": float(least.min()) if least.numel() else None,
    }
    means, advice = "the product of the three norms is a sound float32 number for all heads", ""
    if (lost | rough).any():
        means = (
            f"as a float32 product of three norms, {int(lost.sum())} heads would be zero and "
            f"{int(rough.sum())} short of digits"
        )
        advice = "Nothing here: espalier adds logarithms in float64. Other code should not multiply"
    return Finding("float32 products", not advice, means, advice, False, numbers)


def _ranking(norms: Tensor, logs: Tensor) -> Finding:
    """Would the published ranking, the highest max − z in float32 first, give the same order?"""
    product = _float32(norms)
    with np.errstate(all="ignore"):
        z = (product - product.mean()) / product.std(ddof=1)
        chosen_by = z.max() - z
    exact, tied = logs.argsort(stable=True).numpy(), 0
    if len(product) > 1 and not np.isfinite(chosen_by).all():  # all alike, or none a number
        tied = moved = len(product)
        first = False
    else:
        for value in np.unique(chosen_by):
            group = logs[torch.from_numpy(chosen_by == value)]
            tied += len(group) if len(group) > 1 and group.max() - group.min() > SAME else 0
        theirs = np.argsort(-chosen_by, kind="stable")
        moved, first = int((theirs != exact).sum()), bool(theirs[0] == exact[0])
    numbers = {"tied": tied, "moved": moved, "first_is_the_same": first}
    means, advice = "max − z in float32 ranks the heads as their logarithms do", ""
    if tied or moved:
        means = f"max − z in float32 ties {tied} heads that differ and puts {moved} in another place" + (
            "" if first else "; its very first pick is another"
        )
        advice = "Nothing here: espalier ranks logarithms. Published orders may differ from yours"
    return Finding("float32 ranking", not advice, means, advice, False, numbers)


def _ties(logs: Tensor) -> Finding:
    """Are there heads that even float64 cannot tell apart?"""
    values = logs.sort().values.tolist()
    gaps = [0.0 if a == b else b - a for a, b in pairwise(values)]  # -inf − -inf is no number
    ties, near = sum(gap < SAME for gap in gaps), sum(gap < NOISE for gap in gaps)
    numbers = {"ties": ties, "near": near, "smallest_gap": min(gaps, default=None)}
    means, advice = "no two heads have the same score", ""
    if near:
        means += f"; {near} neighbours are so near that another machine may swap them"
    if ties:
        means = f"{ties} neighbours in the order have the same score to nine digits; the earlier goes first"
        advice = "More examples may tell them apart: --calibrate N"
    return Finding("ties", not ties, means, advice, False, numbers)


def _batches(taus: Mapping[str, Any]) -> Finding:
    """Does the order depend on how examples are put into batches?"""
    tau, whole = taus["example"], taus["batch"]
    means = (
        f"{taus['examples']} examples one by one and all in one batch: Kendall's tau of the two orders is "
        f"{'unknown' if tau is None else f'{tau:.3f}'} with pooling=example, {whole:.3f} with pooling=batch"
    )
    ok = tau is not None and tau >= STEADY
    advice = ""
    if tau is None:
        advice = "This model mixes the examples of a batch: score with --batch 1"
    elif not ok:
        advice = "Padding or company changes this model's answers: score with --batch 1"
    elif whole < STEADY:
        advice = "With pooling=batch the batch size is part of the score: say it, --batch N"
    return Finding("batches", ok, means, advice, not ok, dict(taus))


def _each_norm(out: Any) -> Tensor:
    """The sum over examples of the norm of each one's logits."""
    return _logits(out).flatten(1).norm(dim=1).sum()


def _one_norm(out: Any) -> Tensor:
    """The norm of all logits of the batch, as published."""
    return torch.linalg.vector_norm(_logits(out))


def _logits(out: Any) -> Tensor:
    if getattr(out, "logits", None) is None:
        raise EspalierError(
            f"the model returns no logits ({type(out).__name__}); load it with a head, for example "
            "AutoModelForSequenceClassification"
        )
    return out.logits


def _norms(model: nn.Module, sites: Sequence[Any], batches: Sequence[Batch], whole: bool = False) -> Tensor:
    """[roles, heads]: the mean norm of the gradients of examples, or of batches if they are taken `whole`."""
    total = torch.zeros(len(ROLES), sum(site.units for site in sites), dtype=torch.float64)
    rows = 0
    for batch in batches:
        value = _one_norm if whole else _each_norm
        found = gradient_norms(model, sites, batch, value, roles=ROLES, summed=whole)
        for i, role in enumerate(ROLES):
            total[i] += torch.cat([found[site.name][role].sum(0) for site in sites])
        rows += len(found[sites[0].name][ROLES[0]])
    return total / rows


def _norms_by_example(model: nn.Module, sites: Sequence[Any], batches: Sequence[Batch]) -> Tensor:
    try:
        return _norms(model, sites, batches)
    except EspalierError:  # examples share a weight's gradient (relative positions): one at a time, then
        return _norms(model, sites, alone(batches))


def _taus(model: nn.Module, sites: Sequence[Any], some: Sequence[Batch], one: Batch) -> dict[str, Any]:
    """How alike are the orders of examples one by one and in one batch, for either pooling?"""

    def order(batches: Sequence[Batch], whole: bool) -> Tensor:
        return _norms(model, sites, batches, whole).log().sum(0).argsort(stable=True)

    base = order(some, False)
    try:
        example = kendall(base, order([one], False))
    except EspalierError:
        example = None
    return {"examples": len(some), "example": example, "batch": kendall(base, order([one], True))}


def kendall(a: Tensor, b: Tensor) -> float:
    """Kendall's tau of two orders of the same units: 1 the same, −1 reversed, 0 unrelated."""
    if len(a) < 2:
        return 1.0
    i, j = a.argsort(), b.argsort()  # the place of each unit
    agree = (i[:, None] - i).sign() * (j[:, None] - j).sign()
    return float(agree.sum()) / (len(a) * (len(a) - 1))


def _float32(norms: Tensor) -> np.ndarray:
    """The plain product of the three norms, as code in float32 would compute it."""
    q, k, v = norms.float().numpy()
    with np.errstate(all="ignore"):
        return np.asarray(q * k * v)


def _where(flags: Tensor, names: Sequence[str]) -> dict[str, str]:
    """{head: roles} of what is flagged, [roles, heads]."""
    return {
        names[i]: "".join(role for role, flag in zip(ROLES, flags[:, i]) if flag)
        for i in flags.any(0).nonzero().flatten()
    }


def _listed(heads: Mapping[str, str]) -> str:
    shown = ", ".join(f"{name} ({', '.join(roles)})" for name, roles in list(heads.items())[:SHOWN])
    return shown + (f" … ({len(heads)} in all)" if len(heads) > SHOWN else "")
