"""The contract of a criterion: what its decorator declares and what holds for all, on tiny random models.

Each check takes a criterion and raises AssertionError. `check_criterion` runs all of them, by name, on a file
or on a criterion itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..architectures.site import AnySite
from ..architectures.sites import TARGETS, sites
from ..architectures.stack import StackSite
from ..architectures.table import architectures
from ..core.batches import Batches
from ..core.errors import EspalierError
from ..core.mask import Scores
from ..core.types import PreTrainedModel
from ..criteria import Criterion, load
from .tiny import checks_in, inputs, merge_examples, split_examples, tiny

MODELS = ("bert", "gpt2", "llama")  # separate weights; fused and transposed ones; grouped queries
CLASSIFIER = "AutoModelForSequenceClassification"
HOOKS = [f"_{way}_{when}hooks" for way in ("forward", "backward") for when in ("", "pre_")]
HOOKS += ["_state_dict_hooks", "_load_state_dict_pre_hooks"]
ROUNDING = 1e-6  # relative to the largest score; models are in float64


def check_criterion(criterion: str | Path | Criterion) -> None:
    """Run every check on a criterion, its name or its file; raise AssertionError at the first that fails."""
    found = criterion if isinstance(criterion, Criterion) else load(criterion)
    for check in CHECKS.values():
        check(found)


def scores_every_unit(criterion: Criterion) -> None:
    """Each unit of each declared target gets a finite number or −inf, and not all units the same."""
    name = criterion.__name__
    assert criterion.targets, f"{name} declares no target"
    assert set(criterion.targets) <= set(TARGETS), f"{name} declares unknown targets: {criterion.targets}"
    for context, model, found in _cases(criterion):
        values = _flatten(_score(criterion, model, found, _batches(model)))
        assert not (values == torch.inf).any(), f"{context}: some scores are +inf"
        assert len(values.unique()) > 1, f"{context}: all units have the same score"


def is_deterministic(criterion: Criterion) -> None:
    """Two calls give the same scores, bit for bit."""
    for context, model, found in _cases(criterion):
        first, second = (_flatten(_score(criterion, model, found, _batches(model))) for _ in range(2))
        assert torch.equal(first, second), f"{context}: two calls give different scores"


def ignores_batch_size(criterion: Criterion) -> None:
    """The scores are the same however the examples are put into batches, with the padding that brings."""
    if not criterion.batch_invariant:
        return
    for context, model, found in _cases(criterion):
        singles = split_examples(_batches(model))
        want = _score(criterion, model, found, Batches(singles))
        for parts in ([singles], [singles[:2], singles[2:]]):
            got = _score(criterion, model, found, Batches(map(merge_examples, parts)))
            sizes = " and ".join(str(len(part)) for part in parts)
            message = f"{context}: batches of {sizes} examples and of 1 give different scores. "
            assert _close(got, want), message + "If that is intended, declare batch_invariant=False"


def declares_its_data(criterion: Criterion) -> None:
    """Without needs_data, the scores are the same without batches."""
    if criterion.needs_data:
        return
    for context, model, found in _cases(criterion):
        want = _score(criterion, model, found, _batches(model))
        got = _score(criterion, model, found, Batches())
        assert _close(got, want), f"{context}: the scores depend on batches; declare needs_data=True"


def declares_its_labels(criterion: Criterion) -> None:
    """Without needs_labels, the scores are the same without labels."""
    if criterion.needs_labels:
        return
    for context, model, found in _cases(criterion):
        want = _score(criterion, model, found, _batches(model))
        texts = Batches({k: v for k, v in batch.items() if k != "labels"} for batch in _batches(model))
        why = f"{context}: the scores depend on labels; declare needs_labels=True"
        try:
            got = criterion(model, found, texts)
        except Exception as error:  # whatever a missing loss leads to
            raise AssertionError(why) from error
        assert _close(got, want), why


def leaves_model_unchanged(criterion: Criterion) -> None:
    """Weights, buffers, gradients, modes, requires_grad, hooks and the attention are as before."""
    for context, model, found in _cases(criterion):
        model.train()
        next(model.modules()).training = False
        for i, p in enumerate(model.parameters()):
            p.requires_grad_(i % 2 == 0)
            p.grad = torch.full_like(p, 0.5) if i % 3 == 0 else None
        before = _state(model)
        _score(criterion, model, found, _batches(model))
        after = _state(model)
        added = sorted(before.keys() ^ after.keys())
        assert not added, f"{context}: the criterion adds or removes {added[0]}"
        for key, value in before.items():
            unchanged = torch.equal(value, after[key]) if isinstance(value, Tensor) else value == after[key]
            assert unchanged, f"{context}: the criterion changes {key}"


def scores_idle_units_as_declared(criterion: Criterion) -> None:
    """Bigger means keep: a unit whose weights are all zero scores lowest, or 0 where scores have a sign."""
    if criterion.idle == "any":
        return
    for context, model, found in _cases(criterion):
        if isinstance(found[0], StackSite):
            continue  # a block without weights may still have a norm
        idle = _make_idle(model, found)
        scores = _score(criterion, model, found, _batches(model))
        low = torch.cat([scores[name][mask].flatten() for name, mask in idle.items()])
        rest = torch.cat([scores[name][~mask].flatten() for name, mask in idle.items()])
        if criterion.idle == "zero":
            assert (low == 0).all(), f"{context}: units whose weights are all zero do not score 0"
            continue
        finite = rest[rest.isfinite()]
        assert low.max() <= finite.min() + ROUNDING * finite.abs().max(), (
            f"{context}: units whose weights are all zero do not score lowest. Bigger must mean keep"
        )


def ignores_fusion(criterion: Criterion) -> None:
    """Heads and neurons score the same whether their weights are separate or fused into one matrix."""
    for target in set(_common_targets(criterion)) - {"weights"}:
        separate, fused = _separate_and_fused()
        got, want = (_score(criterion, one, sites(one, target), _batches(one)) for one in (fused, separate))
        assert _close(got, want), f"{criterion.__name__}, {target}: fused weights score differently"


CHECKS: dict[str, Callable[[Criterion], None]] = checks_in(__name__)


def _cases(criterion: Criterion) -> Iterator[tuple[str, PreTrainedModel, Sequence[AnySite]]]:
    """Yield what is scored, for messages; a new model; its sites."""
    for model_type in MODELS:
        for target in _common_targets(criterion):
            model = tiny(model_type, CLASSIFIER).double()
            yield f"{criterion.__name__}, {target} of {model_type}", model, sites(model, target)


def _common_targets(criterion: Criterion) -> list[str]:
    """Return the targets that the models here have: no slots. Blocks stand for sublayers too."""
    listed = {spec.target for name in MODELS for spec in architectures()[name].specs}
    return [target for target in criterion.targets if target in (*listed, "weights", "layers")]


def _batches(model: PreTrainedModel) -> Batches:
    """Return six examples in two batches of different lengths, with labels."""
    out = Batches()
    for tokens in (5, 8):
        given = {k: v for k, v in inputs(model, batch=3, tokens=tokens).items() if isinstance(v, Tensor)}
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        out.append({**given, "labels": torch.tensor([0, 1, 1])})
    return out


def _score(
    criterion: Criterion, model: PreTrainedModel, found: Sequence[AnySite], batches: Batches
) -> Scores:
    try:
        return criterion(model, found, batches)
    except EspalierError as error:
        raise AssertionError(f"{criterion.__name__} fails: {error}") from error


def _flatten(scores: Scores) -> Tensor:
    return torch.cat([value.flatten().double() for value in scores.values()])


def _close(got: Scores, want: Scores) -> bool:
    a, b = _flatten(got), _flatten(want)
    finite = b.isfinite()
    if not torch.equal(a[~finite], b[~finite]):
        return False
    return torch.allclose(a[finite], b[finite], rtol=ROUNDING, atol=ROUNDING * float(b[finite].abs().max()))


def _state(model: PreTrainedModel) -> dict[str, Any]:
    state: dict[str, Any] = {"the attention implementation": model.config._attn_implementation}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        state[f"the values of {name}"] = tensor.detach().clone()
        state[f"requires_grad of {name}"] = tensor.requires_grad
        grad = tensor.grad
        state[f"the gradient of {name}"] = (id(grad), None if grad is None else float(grad.sum()))
    for name, module in model.named_modules():
        state[f"the mode of {name or 'the model'}"] = module.training
        hooks = [list(getattr(module, kind)) for kind in HOOKS]
        state[f"the hooks of {name or 'the model'}"] = (hooks, module.__dict__.get("forward"))
    return state


def _make_idle(model: PreTrainedModel, found: Sequence[AnySite]) -> dict[str, Tensor]:
    """Set all weights of some units to zero, and return which of the scored units are thereby idle."""
    idle = {site.name: torch.zeros(site.shape, dtype=torch.bool) for site in found}
    matrices = {id(site.matrices[0]): site.name for site in found if site.target == "weights"}
    with torch.no_grad():
        for number, site in enumerate(sites(model)):
            unit = number % site.units
            if site.name in idle:
                idle[site.name][unit] = True
            for role in site.places:
                module, channels = site.module(role), site.index(role)[unit]
                module.weight.index_fill_(site.axis(role), channels, 0)
                if role != "write" and getattr(module, "bias", None) is not None:
                    module.bias.index_fill_(0, channels, 0)
                if id(module.weight) in matrices:
                    idle[matrices[id(module.weight)]].index_fill_(site.axis(role), channels, True)
    return idle


def _separate_and_fused() -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return two models with the same weights: Llama's are separate, those of Phi 3 fused."""
    separate = tiny("llama", CLASSIFIER, attention_bias=False, mlp_bias=False).double()
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "rms_norm_eps")
    shape = {name: getattr(separate.config, name) for name in names}
    fused = tiny("phi3", CLASSIFIER, **shape).double()
    weights = separate.state_dict()
    for name in fused.state_dict():
        for whole, pieces in (("qkv_proj", "q_proj k_proj v_proj"), ("gate_up_proj", "gate_proj up_proj")):
            if whole in name:
                weights[name] = torch.cat([weights.pop(name.replace(whole, p)) for p in pieces.split()])
    fused.load_state_dict(weights)
    return separate, fused
