"""The contract of an architecture table: equalities that hold for every model type, on tiny random models.

Each check takes a model type and raises AssertionError. `check_architecture` runs all of them; for a table of
your own call `register_architecture` first.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.sites import ALSO, sites
from ..architectures.table import architecture_of
from ..core.errors import UnsupportedError
from ..core.mask import Mask, Plan, Scores
from ..core.types import PreTrainedModel
from ..engine.gates import gated, masked
from ..evaluation.cost import parameters
from ..pruning.cut import cut, plan_of
from ..pruning.zero import zero
from ..selection.scopes import remove_lowest
from ..storage.load import load
from ..storage.save import save
from . import stacks
from .generation import check_token_by_token
from .tiny import GENERATING, checks_in, inputs, outputs, same, tiny, tops, uneven


def check_architecture(model_type: str) -> None:
    """Run every check on one model type; raise AssertionError at the first that fails."""
    for check in CHECKS.values():
        check(model_type)


def _different(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return any(not torch.allclose(x, y, atol=1e-4) for x, y in zip(a, b))


def sites_are_found(model_type: str) -> None:
    """Every block has the units of its table, heads among them; every weight is arranged by unit."""
    model = tiny(model_type)
    found, listed = sites(model), {spec.target for spec in architecture_of(model).specs}
    targets = {s.target for s in found}
    assert "heads" in targets, f"a table lists heads; this lists {listed}"
    assert targets == listed, f"the table lists {listed}; the model has {targets}"
    for site in found:
        for role in ("q", "k", "v") if site.target == "heads" else ():
            assert site.weight(role).shape[0] == site.units, (site, role)
            assert site.weight(role).shape[1] == site.sizes["d"] * (site.group if role == "q" else 1)
    weights = sites(tiny(model_type), "weights")
    assert len({s.name for s in weights}) == len(weights) > len(found)


def gated_is_cut(model_type: str) -> None:
    """Gated ≡ cut: heads, neurons, both; sdpa and eager; one layer loses all units, another none."""
    combinations = [("heads",), ("heads", "neurons"), ("neurons",)]
    if any(site.target == "slots" for site in sites(tiny(model_type))):
        combinations += [("slots",), ("slots", "heads")]
    models = [tiny(model_type, attention=attention) for attention in ("sdpa", "eager")]
    for attention, model in {model.config._attn_implementation: model for model in models}.items():
        given = inputs(model)
        whole = outputs(model, given)
        for number, targets in enumerate(combinations * 2):
            mask = uneven(sites(model), number % 6, targets)
            if not mask:
                continue  # none of these units can be cut: see `uncuttable_is_refused`
            context = f"{attention}, {' and '.join(targets)}"
            want = _check_cut(copy.deepcopy(model), mask, given, context)
            assert _different(whole, want), "gates have no effect"


def _check_cut(model: PreTrainedModel, mask: Mask, given: dict[str, Any], context: str) -> list[Tensor]:
    """Cut the model, which must give what it gave with gates; return that."""
    with masked(model, mask):
        want = outputs(model, given)
    cut(model, mask, report=False)
    same(outputs(model, given), want, context)
    return want


def parameters_fall_as_predicted(model_type: str) -> None:
    """The parameter count falls by what the plan predicts; names, modes, dtypes and ties stay."""
    model = tiny(model_type, next(iter(tops(model_type)), "AutoModel")).train().to(torch.bfloat16)
    next(model.parameters()).requires_grad_(False)
    before, ties, count = _facts(model), _ties(model), parameters(model)
    found = sites(model)
    mask = uneven(found, 0)
    predicted = sum(int((~mask[s.name]).sum()) * s.parameters_per_unit() for s in found if s.name in mask)
    cut(model, mask, report=False)
    assert count - parameters(model) == predicted > 0
    assert before == _facts(model)
    assert ties == _ties(model)
    assert all(module.training for module in model.modules())


def _facts(model: nn.Module) -> dict[str, tuple[object, ...]]:
    named = model.named_parameters(remove_duplicate=False)
    return {name: (p.dtype, p.device, p.requires_grad) for name, p in named}


def _ties(model: nn.Module) -> set[frozenset[str]]:
    by_object: dict[int, set[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        by_object.setdefault(id(p), set()).add(name)
    return {frozenset(names) for names in by_object.values() if len(names) > 1}


def weights_are_zeroed(model_type: str) -> None:
    """Zeroing sets exactly the weights that a mask removes to zero, wherever they are; masked ≡ zero."""
    model = tiny(model_type)
    given, found = inputs(model), sites(model, "weights", also=ALSO)
    whole = outputs(model, given)
    assert len({s.name for s in found}) == len({id(s.linear.weight) for s in found}) == len(found)
    axes = {s.name: s.input_axis for s in found}
    every = Scores({s.name: s.linear.weight.detach().abs() for s in found}, axes)
    blocks = Scores({s.name: every[s.name] for s in sites(model, "weights")}, axes)
    masks = [remove_lowest(blocks, 0.5, scope=scope) for scope in ("global", "row")]
    masks += [remove_lowest(blocks, scope="2:4"), remove_lowest(every, 0.4)]
    for mask in masks:
        model = tiny(model_type)
        with masked(model, mask):
            want = outputs(model, given)
        same(outputs(model, given), whole, "after masking", exact=True)
        assert _different(whole, want), "the mask has no effect"
        zero(model, mask)
        same(outputs(model, given), want, "zeroed", exact=True)
        zeros = sum(int((s.linear.weight == 0).sum()) for s in sites(model, "weights", also=ALSO))
        removed = sum(int((~m).sum()) for m in mask.values())
        assert zeros == removed > 0, f"{zeros:,} zeros, expected {removed:,}"


def macs_fall_as_predicted(model_type: str) -> None:
    """The multiply-accumulates that torch counts fall by what the sites predict."""
    from torch.utils.flop_counter import FlopCounterMode

    model = tiny(model_type, attention="eager")
    # one example: positions are read once for all
    given = {k: v[:1] if isinstance(v, Tensor) else v for k, v in inputs(model).items()}
    found = sites(model)
    if "pos_k" in found[0].places:
        return  # relative positions cost extra, which the closed form leaves out
    lengths: list[int] = []
    writer = found[0].module("write")
    hook = writer.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))

    def count() -> int:
        with FlopCounterMode(display=False) as counter:
            outputs(model, given)
        return int(counter.get_total_flops()) // 2

    before = count()
    hook.remove()
    mask = uneven(found, 0)
    removed = [int((~mask[s.name]).sum()) * s.macs_per_unit(lengths[0]) for s in found if s.name in mask]
    cut(model, mask, report=False)
    fall, predicted = before - count(), sum(removed)
    assert fall == predicted, f"{fall:,} fewer, expected {predicted:,}"


def cut_model_trains(model_type: str) -> None:
    """A cut model takes a step: finite loss, a gradient for every weight that is left."""
    model = cut(tiny(model_type), uneven(sites(tiny(model_type)), 2), report=False).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    out = [t for t in model(**inputs(model)).to_tuple() if isinstance(t, Tensor) and t.is_floating_point()]
    loss = torch.stack([t.float().square().mean() for t in out]).sum()
    assert torch.isfinite(loss), "the loss is not finite"
    loss.backward()
    for site in sites(model):
        for role in site.places:
            if site.module(role).weight.numel():
                assert site.module(role).weight.grad is not None, f"no gradient: {site}, {role}"
    optimiser.step()
    assert all(torch.isfinite(p).all() for p in model.parameters()), "weights are not finite after a step"


def saves_and_loads(model_type: str) -> None:
    """Save → load is bit for bit, the stock loader gives the same, and so does a copy."""
    import transformers

    top = next(iter(tops(model_type)), "AutoModel")
    model = tiny(model_type, top)
    given = inputs(model)
    cut(model, uneven(sites(model), 2), report=False)
    want = outputs(model, given)
    same(outputs(copy.deepcopy(model), given), want, "a copy", exact=True)
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder) / "saved")
        again = load(Path(folder) / "saved")
        assert type(again) is type(model)
        same(outputs(again, given), want, "loaded", exact=True)
        assert plan_of(again).keep == plan_of(model).keep
        model.save_pretrained(Path(folder) / "save_pretrained")
        for name in ("saved", "save_pretrained"):
            stock = getattr(transformers, top).from_pretrained(Path(folder) / name)
            same(outputs(stock, given), want, f"{name}, loaded by transformers", exact=True)


def cuts_add_up(model_type: str) -> None:
    """Two cuts, and one of the plan they add up to, give the same model."""
    once, twice = tiny(model_type), tiny(model_type)
    one_less = Mask.ones([s for s in sites(twice) if not s.uncuttable])
    for i, m in enumerate(one_less.values()):
        m[i % m.numel()] = False
    cut(twice, Plan.of(one_less), report=False)
    first, later = plan_of(twice), uneven(sites(twice), 1)
    cut(twice, later, report=False)
    plan = first.then(later)
    assert plan.keep == plan_of(twice).keep
    cut(once, plan, report=False)
    given = inputs(once)
    same(outputs(twice, given), outputs(once, given), "cut twice", exact=True)


def every_top_agrees(model_type: str) -> None:
    """Every class with a head on top has the same sites, and gated ≡ cut."""
    names = [s.name for s in sites(tiny(model_type))]
    for top in tops(model_type):
        model = tiny(model_type, top)
        found = sites(model)
        assert set(names) >= {s.name for s in found}, top
        _check_cut(model, uneven(found, 1), inputs(model), top)


def generation_agrees(model_type: str) -> None:
    """With a key-value cache, gated and cut give the same tokens; token by token ≡ in one pass."""
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": 1}
    for top in tops(model_type, GENERATING):
        config: dict[str, Any] = {"is_decoder": True} if top == GENERATING[0] else {}
        whole = tiny(model_type, top, **config)
        if not whole.can_generate():
            continue
        given = inputs(whole)
        prompt = {k: v for k, v in given.items() if k in ("input_ids", "input_features")}
        if "input_ids" in prompt:
            prompt["attention_mask"] = torch.ones_like(prompt["input_ids"])
            prompt["attention_mask"][0, :3] = 0
        for turn in range(6):
            model = copy.deepcopy(whole)
            mask = uneven(sites(model), turn)
            with masked(model, mask):
                want = model.generate(**prompt, **options, use_cache=True)
            cut(model, mask, report=False)
            got = model.generate(**prompt, **options, use_cache=True)
            assert torch.equal(got, want), f"{top}, turn {turn}: other tokens than the gated model"
            check_token_by_token(model, given, f"{top}, turn {turn}")


def uncuttable_is_refused(model_type: str) -> None:
    """Units that cannot be cut exactly can be gated, and cutting them raises UnsupportedError."""
    model = tiny(model_type)
    for site in [site for site in sites(model) if site.uncuttable]:
        mask = Mask.without([site], {0: [0]})
        with gated([site], mask):
            outputs(model, inputs(model))
        try:
            cut(model, mask)
        except UnsupportedError:
            continue
        raise AssertionError(f"{site} was cut although its table calls it uncuttable")


CHECKS: dict[str, Callable[[str], None]] = {**checks_in(__name__), **stacks.CHECKS}
