"""The contract of whole blocks and sublayers: removed is gated at zero, in every part of the model."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..architectures.sites import sites
from ..core.errors import UnsupportedError
from ..core.mask import Mask
from ..core.types import PreTrainedModel
from ..engine.gates import gated, masked
from ..exporters.plain import export
from ..pruning.cut import cut, plan_of
from ..storage.load import load
from ..storage.save import save
from .generation import check_token_by_token
from .maps import check_maps
from .tiny import GENERATING, checks_in, inputs, outputs, same, tensors_in, tiny, tops, uneven

STATES = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")


def blocks_are_removed(model_type: str) -> None:
    """Gated ≡ removed for the first, a middle and the last block; as many hidden states and maps are left."""
    model = tiny(model_type, attention="eager")
    if _refuses_blocks(model):
        return
    given, counted = inputs(model), _count_states(model)
    for removed in ([1], [0, 2]):
        small = _remove(copy.deepcopy(model), given, _without(model, layers=removed))
        left = {site.path: site.units for site in sites(small, "layers")}
        assert set(left.values()) == {3 - len(removed)}, f"{left} blocks are left"
        fewer = {name: n - len(removed) for name, n in counted.items()}
        assert _count_states(small) == fewer, f"{_count_states(small)} hidden states, expected {fewer}"
        check_maps(small, given, f"without {removed}")


def sublayers_are_removed(model_type: str) -> None:
    """Gated ≡ removed for attention and network; their norms go too, so that every weight left is used."""
    model = tiny(model_type).train()
    given = inputs(model.eval())
    before = _used(model, given)
    for attention, ffn in (([0], [1]), ([0, 1, 2], [0, 1, 2])):
        mask = _without(model, attention=attention, ffn=ffn)
        small = _remove(copy.deepcopy(model), given, mask)
        used = _used(small, given)
        left = {name for name, p in small.named_parameters() if p.numel()}
        lost = sorted((before - used) & left) if len(attention) < 3 else ()  # all of T5 share a position bias
        assert not lost, f"without {attention} and {ffn}, {lost[0]} is left and has no effect"


def removed_blocks_are_saved(model_type: str) -> None:
    """Save → load is bit for bit without blocks, sublayers and units; a plain checkpoint has fewer blocks."""
    import transformers

    top = next(iter(tops(model_type)), "AutoModel")
    whole = tiny(model_type, top)
    given, blocked = inputs(whole), _refuses_blocks(whole)
    mask = _without(whole, attention=[1], ffn=[2], layers=[] if blocked else [0])
    small = _units_then_blocks(whole, mask)
    want = outputs(small, given)
    with tempfile.TemporaryDirectory() as folder:
        save(small, Path(folder) / "saved")
        again = load(Path(folder) / "saved")
        assert plan_of(again).keep == plan_of(small).keep
        same(outputs(again, given), want, "loaded", exact=True)
        if not blocked:
            small = cut(copy.deepcopy(whole), _without(whole, layers=[1]), report=False)
            export(small, Path(folder) / "plain")
            plain = getattr(transformers, top).from_pretrained(Path(folder) / "plain")
            assert not hasattr(plain.config, "quantization_config")
            same(outputs(plain, given), outputs(small, given), "exported", exact=True)


def caches_follow_blocks(model_type: str) -> None:
    """Without its first block, and without some sublayers, token by token with a cache ≡ in one pass."""
    for top in tops(model_type, GENERATING):
        config: dict[str, Any] = {"is_decoder": True} if top == GENERATING[0] else {}
        model = tiny(model_type, top, **config)
        if not model.can_generate() or _refuses_blocks(model):
            continue
        for mask in (_without(model, layers=[0]), _without(model, attention=[0], ffn=[1], layers=[1])):
            small = cut(copy.deepcopy(model), mask, report=False)
            check_token_by_token(small, inputs(model), top)


def gates_reach_blocks(model_type: str) -> None:
    """Gates on blocks and sublayers take gradients, and at 1 they change nothing."""
    model = tiny(model_type)
    given, found = inputs(model), sites(model, "layers", "attention", "ffn")
    with gated(found) as gates:
        out = list(tensors_in(model(**given)))
        same([t.detach() for t in out], outputs(model, given), "open gates")
        grads = torch.autograd.grad(torch.stack([t.sin().sum() for t in out]).sum(), list(gates.values()))
    assert all(grad.abs().min() > 0 for grad in grads), "a gate has no effect"


def _refuses_blocks(model: PreTrainedModel) -> bool:
    """Return whether blocks of this model stay; then cutting them must say why."""
    blocked = [site for site in sites(model, "layers") if site.uncuttable]
    if blocked:
        try:
            cut(model, Mask.without(blocked[:1], {0: [0]}))
        except UnsupportedError:
            return True
        raise AssertionError(f"{blocked[0]} was cut although its table says: {blocked[0].uncuttable}")
    return False


def _without(model: PreTrainedModel, **units: list[int]) -> Mask:
    """Return a mask without these units of every stack; a target that the model lacks is left out."""
    mask = Mask()
    for target, numbers in units.items():
        for site in [s for s in sites(model, "layers", "attention", "ffn") if s.target == target]:
            mask[site.name] = torch.tensor([unit not in numbers for unit in range(site.units)])
    return mask


def _remove(model: PreTrainedModel, given: dict[str, Any], mask: Mask) -> PreTrainedModel:
    with masked(model, mask):
        want = outputs(model, given)
    cut(model, mask, report=False)
    same(outputs(model, given), want, f"without {[name for name, kept in mask.items() if not kept.all()]}")
    return model


def _units_then_blocks(whole: PreTrainedModel, mask: Mask) -> PreTrainedModel:
    """Cut units, then blocks, and all of it by the plan that they add up to: the same model."""
    units = uneven(sites(whole), 1)
    small = cut(cut(copy.deepcopy(whole), units, report=False), mask, report=False)
    once = cut(copy.deepcopy(whole), plan_of(small), report=False)
    assert plan_of(once).keep == plan_of(small).keep
    given = inputs(whole)
    same(outputs(once, given), outputs(small, given), "cut by the plan", exact=True)
    return small


def _count_states(model: PreTrainedModel) -> dict[str, int]:
    with torch.no_grad():
        out = model(**inputs(model), output_hidden_states=True)
    return {name: len(out[name]) for name in STATES if out.get(name) is not None}


def _used(model: PreTrainedModel, given: dict[str, Any]) -> set[str]:
    """Return the parameters that change the output."""
    model = copy.deepcopy(model)
    torch.stack([t.sin().sum() for t in tensors_in(model(**given))]).sum().backward()
    return {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}


CHECKS: dict[str, Callable[[str], None]] = checks_in(__name__)
