"""Diagnosis of the gradients that rank heads: are they present, correct and distinguishable in float?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..architectures.site import Site
from ..core.batches import Batches, require_batches
from ..core.errors import DependencyError, EspalierError, UnsupportedError
from ..core.types import PreTrainedModel
from ..engine.gradient_norms import ROLES, gradient_norms
from ..engine.passes import frozen_eval
from .differences import gradient_errors
from .tiny import Batch, merge_examples, split_examples

AGREE = 1e-4  # relative error up to which a difference of values confirms a gradient
SAME = 1e-9  # relative difference of two products below which they are a tie
NOISE = 1e-5  # and below which another machine may order them differently
STEADY = 0.999  # Kendall's tau of two orders that are the same but for rounding
FEWER = 3  # examples for differences: each costs two passes per block
SHOWN = 5  # heads named in a sentence; all of them are in the numbers


@dataclass(frozen=True)
class Finding:
    """One question, its answer, and what to do about it."""

    name: str
    ok: bool
    means: str
    advice: str = ""
    serious: bool = False  # affects espalier's own scores, not only those of simpler arithmetic
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """ok, warning, or error if espalier's own scores are affected."""
        return "ok" if self.ok else "error" if self.serious else "warning"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON, which has no infinity."""
        numbers = {k: None if v in (inf, -inf) else v for k, v in self.numbers.items()}
        return {**asdict(self), "verdict": self.verdict, "numbers": numbers}


def diagnose(
    model: PreTrainedModel,
    sites: Sequence[Site],
    batches: Batches,
    *,
    few: int = 8,
    sample: int = 12,
    seed: int = 0,
) -> list[Finding]:
    """Return findings about the Q, K and V gradients of the logits' norm, by which gnorm ranks heads.

    `few` examples are put into other batches; differences are computed for `sample` heads on fewer still.
    """
    heads = [site for site in sites if site.target == "heads" and site.units]
    if not heads:
        raise UnsupportedError("the gradient diagnosis needs heads: pass sites(model, 'heads')")
    require_batches(batches, "the gradient diagnosis")
    singles = split_examples(batches)
    every = max(1, len(singles) // few)  # all lengths are among them: batches may be sorted by length
    some = singles[::every][:few]
    padding = getattr(model.config, "pad_token_id", None) or 0
    names = [f"{site.name} {unit}" for site in heads for unit in range(site.units)]
    with frozen_eval(model):
        try:
            norms = _norms(model, heads, batches)
        except EspalierError:  # examples share a weight's gradient (relative positions)
            norms = _norms(model, heads, split_examples(batches))
        present = _check_present(norms, names)
        if present.serious:  # without finite gradients there is no order to check
            return [present]
        taus = _rank_correlations(model, heads, some, merge_examples(some, padding=padding))
    logs = norms.log().sum(0)
    fewer = merge_examples(some[:FEWER], padding=padding)
    errors = gradient_errors(model, heads, fewer, _sum_of_norms, sample=sample, seed=seed)
    return [
        present,
        _check_differences(errors),
        _check_products(norms, names),
        _check_ranking(norms, logs),
        _check_ties(logs),
        _check_batches(taus),
    ]


def _check_present(norms: Tensor, names: Sequence[str]) -> Finding:
    """Does every head have a gradient, and is it finite?"""
    not_finite, zero = _where(~norms.isfinite(), names), _where(norms == 0, names)
    numbers = {"heads": len(names), "not_finite": not_finite, "zero": zero}
    means, advice = f"all {len(names)} heads have finite gradients in q, k and v", ""
    if not_finite:
        means = f"gradients that are not finite: {_listed(not_finite)}"
        advice = "Load the model in float32, and look for texts without a token"
    elif zero:
        means = f"no gradient, so gnorm removes these first: {_listed(zero)}"
        advice = "A head without gradient in q, k and v has no effect on these texts; else compare taylor"
    return Finding("gradients", not advice, means, advice, bool(not_finite), numbers)


def _check_differences(errors: Mapping[str, float | None]) -> Finding:
    """Does the objective change as the gradient predicts, when a block moves along it?"""
    seen = {key: error for key, error in errors.items() if error is not None}
    worst = max(seen, key=lambda key: seen[key], default=None)
    numbers = {
        "compared": len(seen),
        "too_small": len(errors) - len(seen),
        "worst": worst,
        "worst_error": None if worst is None else seen[worst],
    }
    if worst is None:
        means = "every gradient in the sample is too small to show in a difference of values"
        return Finding("differences", False, means, "Use other texts", False, numbers)
    ok = seen[worst] <= AGREE
    means = f"{len(seen)} gradients against central differences: relative error at most {seen[worst]:.1e}"
    advice = "" if ok else f"{worst} is wrong: run the contract of this model's architecture table"
    return Finding("differences", ok, means, advice, not ok, numbers)


def _check_products(norms: Tensor, names: Sequence[str]) -> Finding:
    """Is the plain product of three norms a normal float32 number?"""
    usual = (norms > 0).all(0) & norms.isfinite().all(0)
    product = torch.from_numpy(_float32_product(norms))
    lost = usual & (product == 0)
    rough = usual & (product > 0) & (product < torch.finfo(torch.float32).tiny)
    logs = norms[:, usual].log10().sum(0)
    numbers = {
        "underflow": [names[i] for i in lost.nonzero().flatten()],
        "subnormal": [names[i] for i in rough.nonzero().flatten()],
        "smallest_log10": float(logs.min()) if logs.numel() else None,
    }
    means, advice = "the product of the three norms is a normal float32 number for all heads", ""
    if (lost | rough).any():
        means = f"as a float32 product of three norms, {int(lost.sum())} heads would be zero and "
        means += f"{int(rough.sum())} subnormal"
        advice = "None needed: espalier adds logarithms in float64. Other code should not multiply"
    return Finding("float32 products", not advice, means, advice, False, numbers)


def _check_ranking(norms: Tensor, logs: Tensor) -> Finding:
    """Does the published ranking, the highest max − z in float32 first, give the same order?"""
    product = _float32_product(norms)
    with np.errstate(all="ignore"):
        z = (product - product.mean()) / product.std(ddof=1)
        chosen_by = z.max() - z
    exact, tied = logs.argsort(stable=True).numpy(), 0
    if len(product) > 1 and not np.isfinite(chosen_by).all():  # all equal, or none a number
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
        means = f"max − z in float32 ties {tied} heads that differ and moves {moved} to another rank"
        means += "" if first else "; its first choice is another head"
        advice = "None needed: espalier ranks logarithms. Published orders may differ from yours"
    return Finding("float32 ranking", not advice, means, advice, False, numbers)


def _check_ties(logs: Tensor) -> Finding:
    """Are there heads with the same score in float64?"""
    values = logs.sort().values.tolist()
    gaps = [0.0 if a == b else b - a for a, b in pairwise(values)]  # -inf − -inf is nan
    ties, near = sum(gap < SAME for gap in gaps), sum(gap < NOISE for gap in gaps)
    numbers = {"ties": ties, "near": near, "smallest_gap": min(gaps, default=None)}
    means, advice = "no two heads have the same score", ""
    if near:
        means += f"; {near} neighbours are so close that another machine may swap them"
    if ties:
        means = f"{ties} neighbours have the same score to nine digits; the earlier is removed first"
        advice = "More calibration examples may separate them"
    return Finding("ties", not ties, means, advice, False, numbers)


def _check_batches(taus: Mapping[str, Any]) -> Finding:
    """Does the order depend on how examples are put into batches?"""
    tau, whole = taus["example"], taus["batch"]
    means = f"{taus['examples']} examples one by one and in one batch: Kendall's tau of the two orders is "
    means += (
        f"{'unknown' if tau is None else f'{tau:.3f}'} with pooling=example, {whole:.3f} with pooling=batch"
    )
    ok, advice = tau is not None and tau >= STEADY, ""
    if not ok:
        why = "mixes the examples of a batch" if tau is None else "gives other outputs with padding"
        advice = f"This model {why}: score with `batch_size` 1"
    elif whole < STEADY:
        advice = "With pooling=batch the `batch_size` is part of the score: report it"
    return Finding("batches", ok, means, advice, not ok, dict(taus))


def _sum_of_norms(out: Any) -> Tensor:
    """Return the sum over examples of the norm of each one's logits."""
    return _logits(out).flatten(1).norm(dim=1).sum()


def _norm_of_all(out: Any) -> Tensor:
    """Return the norm of all logits of the batch, as published."""
    return torch.linalg.vector_norm(_logits(out))


def _logits(out: Any) -> Tensor:
    if getattr(out, "logits", None) is None:
        advice = "load it with a head, for example AutoModelForSequenceClassification"
        raise UnsupportedError(f"the model returns no logits ({type(out).__name__}); {advice}")
    return out.logits


def _norms(
    model: PreTrainedModel, sites: Sequence[Site], batches: Sequence[Batch], pooled: bool = False
) -> Tensor:
    """Return [roles, heads], the mean norm of the gradients of examples, or of batches if `pooled`."""
    total, rows = torch.zeros(len(ROLES), sum(site.units for site in sites), dtype=torch.float64), 0
    objective = _norm_of_all if pooled else _sum_of_norms
    for batch in batches:
        found = gradient_norms(model, sites, batch, objective, summed=pooled)
        total += torch.stack([torch.cat([found[site.name][r].sum(0) for site in sites]) for r in ROLES])
        rows += len(found[sites[0].name][ROLES[0]])
    return total / rows


def _rank_correlations(
    model: PreTrainedModel, sites: Sequence[Site], some: Sequence[Batch], one: Batch
) -> dict[str, Any]:
    """Compare the orders of examples one by one and in one batch, for either pooling."""
    try:
        from scipy.stats import kendalltau
    except ImportError:
        raise DependencyError("scipy", "report", "the gradient diagnosis") from None

    def ranks(batches: Sequence[Batch], pooled: bool) -> Tensor:
        return _norms(model, sites, batches, pooled).log().sum(0).argsort(stable=True).argsort()

    def correlation(pooled: bool) -> float:
        other = ranks([one], pooled)
        return float(kendalltau(reference, other).statistic) if len(reference) > 1 else 1.0

    reference = ranks(some, pooled=False)
    try:
        example = correlation(pooled=False)
    except EspalierError:
        example = None
    return {"examples": len(some), "example": example, "batch": correlation(pooled=True)}


def _float32_product(norms: Tensor) -> np.ndarray:
    """Return the plain product of the three norms, as code in float32 would compute it."""
    q, k, v = norms.float().numpy()
    with np.errstate(all="ignore"):
        return np.asarray(q * k * v)


def _where(flags: Tensor, names: Sequence[str]) -> dict[str, str]:
    """Return {head: roles} of what is flagged, [roles, heads]."""
    return {
        names[i]: "".join(role for role, flag in zip(ROLES, flags[:, i]) if flag)
        for i in flags.any(0).nonzero().flatten()
    }


def _listed(heads: Mapping[str, str]) -> str:
    shown = ", ".join(f"{name} ({', '.join(roles)})" for name, roles in list(heads.items())[:SHOWN])
    return shown + (f" … ({len(heads)} in all)" if len(heads) > SHOWN else "")
