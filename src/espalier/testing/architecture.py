"""The contract of an architecture: equalities that hold for every architecture, on tiny random models.

Each check takes a model type and fails with an AssertionError. The test suite runs all of them on every
known type; `espalier check architecture` runs them on one, also on a table of your own.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..architectures.site import Site
from ..architectures.table import sites
from ..core.errors import EspalierError
from ..core.mask import Mask, Scores
from ..core.plan import Plan
from ..engine.gates import gated, masked
from ..evaluation.cost import parameters
from ..pruning.cut import cut, plan_of, zero
from ..selection.scopes import remove_lowest
from ..storage.save import load, save
from .tiny import answers, inputs, tiny, tops, uneven

WRITERS = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq")
GENERATING = {
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "electra",
    "ernie",
    "roformer",
}  # only as decoders


def same(got: list[Tensor], want: list[Tensor], what: str, *, exact: bool = False) -> None:
    assert len(got) == len(want), f"{what}: {len(got)} tensors and not {len(want)}"
    for a, b in zip(got, want):
        assert a.shape == b.shape, f"{what}: shape {tuple(a.shape)} and not {tuple(b.shape)}"
        far = (a.double() - b.double()).abs().max().item() if a.numel() else 0.0
        near = 0.0 if exact else 1e-5 * max(1.0, b.abs().max().item())
        assert far <= near, f"{what}: differs by {far:.3g}"


# ------------------------------------------------------------------------------------------ checks


def check_sites_are_found(kind: str) -> None:
    """Every block has heads and neurons, and every role answers unit by unit."""
    found = sites(tiny(kind))
    kinds = {s.target for s in found}
    assert kinds == {"heads", "neurons"}, f"a table says where heads and neurons are; this has {kinds}"
    for site in found:
        for role in ("q", "k", "v") if site.target == "heads" else ():
            assert site.weight(role).shape[0] == site.units, (site, role)
            assert site.weight(role).shape[1] == site.sizes["d"] * (site.group if role == "q" else 1)
    weights = sites(tiny(kind), "weights")
    assert len({s.name for s in weights}) == len(weights) > len(found)


def check_gated_is_cut(kind: str) -> None:
    """Gated ≡ cut: heads, neurons, both; sdpa and eager; a layer losing all, another none."""
    for attention in ("sdpa", "eager"):
        for turn in range(6):
            kinds = (("heads",), ("heads", "neurons"), ("neurons",))[turn // 2]
            model = tiny(kind, attention=attention)
            given = inputs(model)
            mask = uneven(sites(model), turn, kinds)
            if not mask:
                continue  # nothing of this kind can be cut: check_refuses looks at that
            whole = answers(model, given)
            with masked(model, mask):
                want = answers(model, given)
            assert any(not torch.allclose(a, b, atol=1e-4) for a, b in zip(whole, want)), (
                "the gates did nothing"
            )
            cut(model, mask, report=False)
            same(answers(model, given), want, f"{attention}, {' and '.join(kinds)}")


def _floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def check_parameters_fall_as_predicted(kind: str) -> None:
    """The parameter count falls by what the plan says; names, modes, dtypes and ties stay."""
    top = next(iter(tops(kind)), "AutoModel")
    model = tiny(kind, top).train().to(torch.bfloat16)
    next(model.parameters()).requires_grad_(False)
    before = {
        n: (p.dtype, p.device, p.requires_grad) for n, p in model.named_parameters(remove_duplicate=False)
    }
    shared = _ties(model)
    found, count = sites(model), parameters(model)
    mask = uneven(found, 0)
    gone = sum(int((~mask[s.name]).sum()) * s.parameters_per_unit() for s in found if s.name in mask)
    cut(model, mask, report=False)
    assert count - parameters(model) == gone > 0
    after = {
        n: (p.dtype, p.device, p.requires_grad) for n, p in model.named_parameters(remove_duplicate=False)
    }
    assert before == after
    assert shared == _ties(model)
    assert all(module.training for module in model.modules())


def _ties(model: Any) -> set[frozenset[str]]:
    by_object: dict[int, set[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        by_object.setdefault(id(p), set()).add(name)
    return {frozenset(names) for names in by_object.values() if len(names) > 1}


def check_weights_are_zeroed(kind: str) -> None:
    """Exactly as many zeros as weights were closed, wherever they lie; masked ≡ zero."""
    options = {"embeddings": True, "head": True, "norms": True}
    model = tiny(kind)
    given, found = inputs(model), sites(model, "weights", **options)
    whole = answers(model, given)
    assert len({s.name for s in found}) == len({id(s.linear.weight) for s in found}) == len(found)
    axes = {s.name: s.input_axis for s in found}
    every = Scores({s.name: s.linear.weight.detach().abs() for s in found}, axes)
    blocks = Scores({s.name: every[s.name] for s in sites(model, "weights")}, axes)
    masks = [remove_lowest(blocks, 0.5, scope=scope) for scope in ("global", "row")]
    masks += [remove_lowest(blocks, scope="2:4"), remove_lowest(every, 0.4)]
    for mask in masks:
        model = tiny(kind)
        with masked(model, mask):
            want = answers(model, given)
        same(answers(model, given), whole, "unmasked again", exact=True)
        assert any(not torch.allclose(a, b, atol=1e-4) for a, b in zip(whole, want)), "the mask did nothing"
        zero(model, mask)
        same(answers(model, given), want, "zeroed", exact=True)
        zeros = sum(int((s.linear.weight == 0).sum()) for s in sites(model, "weights", **options))
        closed = sum(int((~m).sum()) for m in mask.values())
        assert zeros == closed > 0, f"{zeros:,} zeros and not {closed:,}"


def check_macs_fall_as_predicted(kind: str) -> None:
    """The multiply-accumulates torch counts fall by what the sites say; an empty layer attends nothing."""
    from torch.utils.flop_counter import FlopCounterMode

    model = tiny(kind, attention="eager")
    given, found = inputs(model), sites(model)
    if "pos_k" in found[0].places:
        return  # relative positions cost extra, which the closed form leaves out and says so
    lengths: list[int] = []
    watch = (
        found[0].module("write").register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    )
    counts = []
    mask = uneven(found, 0)
    gone = {s.name: int((~mask[s.name]).sum()) for s in found if s.name in mask}
    per_unit = {s.name: s.macs_per_unit(17) for s in found}
    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            answers(model, given)
        counts.append(counter.get_total_flops() // 2)
        watch.remove()
        if len(counts) == 1:
            per_unit = {s.name: s.macs_per_unit(lengths[0]) for s in found}
            cut(model, mask, report=False)
    predicted = 2 * sum(n * per_unit[name] for name, n in gone.items())  # two examples
    assert counts[0] - counts[1] == predicted, f"{counts[0] - counts[1]:,} and not {predicted:,}"


def check_cut_model_trains(kind: str) -> None:
    """A cut model takes a step: finite loss, a gradient for every weight that is left."""
    model = cut(tiny(kind), uneven(sites(tiny(kind)), 2), report=False).train()
    given = inputs(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    out = model(**given)
    loss = sum(t.float().square().mean() for t in out.to_tuple() if _floats(t))
    assert torch.isfinite(loss)
    loss.backward()
    for site in sites(model):
        for role in site.places:
            if site.module(role).weight.numel():
                assert site.module(role).weight.grad is not None, (site, role)
    optimiser.step()
    assert all(torch.isfinite(p).all() for p in model.parameters())


def check_saves_and_loads(kind: str) -> None:
    """Save → load is bit for bit, the stock loader gives the same, and so does a copy."""
    import transformers

    top = next(iter(tops(kind)), "AutoModel")
    model = tiny(kind, top)
    given = inputs(model)
    cut(model, uneven(sites(model), 2), report=False)
    want = answers(model, given)
    same(answers(copy.deepcopy(model), given), want, "a copy", exact=True)
    with tempfile.TemporaryDirectory() as tmp:
        save(model, Path(tmp) / "whole")
        again = load(Path(tmp) / "whole")
        assert type(again) is type(model)
        same(answers(again, given), want, "loaded", exact=True)
        assert plan_of(again).keep == plan_of(model).keep
        stock = getattr(transformers, top).from_pretrained(Path(tmp) / "whole")
        same(answers(stock, given), want, "loaded by transformers", exact=True)
        model.save_pretrained(Path(tmp) / "plain")
        stock = getattr(transformers, top).from_pretrained(Path(tmp) / "plain")
        same(answers(stock, given), want, "save_pretrained and from_pretrained", exact=True)


def check_cuts_add_up(kind: str) -> None:
    """Two cuts, and one of the plan they add up to, give the same model."""
    once, twice = tiny(kind), tiny(kind)
    found = sites(twice)
    cut(twice, Plan.of(_thin(found, 1)), report=False)
    first = plan_of(twice)
    later = uneven(sites(twice), 1)
    cut(twice, later, report=False)
    plan = first.then(later)
    assert plan.keep == plan_of(twice).keep
    cut(once, plan, report=False)
    given = inputs(once)
    same(answers(twice, given), answers(once, given), "cut twice", exact=True)


def _thin(found: list[Site], closed: int) -> Mask:
    """Close one unit in every site that has more, a different one each."""
    mask = Mask.ones([s for s in found if not s.part.uncuttable])
    for i, m in enumerate(mask.values()):
        m[i % m.numel()] = False
    return mask


def check_every_top(kind: str) -> None:
    """Whatever head class sits on top: the same sites, and gated ≡ cut."""
    names = [s.name for s in sites(tiny(kind))]
    for top in tops(kind):
        model = tiny(kind, top)
        found = sites(model)
        assert set(names) >= {s.name for s in found}, top
        given = inputs(model)
        mask = uneven(found, 1)
        with masked(model, mask):
            want = answers(model, given)
        cut(model, mask, report=False)
        same(answers(model, given), want, top)


def check_generation(kind: str) -> None:
    """With a key-value cache, gated and cut write the same tokens; token by token ≡ all at once."""
    for top in tops(kind, WRITERS):
        more: dict[str, Any] = {"is_decoder": True} if kind in GENERATING else {}
        for turn in range(6):
            model = tiny(kind, top, **more)
            if not model.can_generate():
                continue
            given = inputs(model)
            prompt = {
                k: v for k, v in given.items() if k in ("input_ids", "attention_mask", "input_features")
            }
            if "input_ids" in prompt:
                prompt["attention_mask"] = torch.ones_like(prompt["input_ids"])
                prompt["attention_mask"][0, :3] = 0
            options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": 1}
            mask = uneven(sites(model), turn)
            with masked(model, mask):
                want = model.generate(**prompt, **options, use_cache=True)
            cut(model, mask, report=False)
            got = model.generate(**prompt, **options, use_cache=True)
            assert torch.equal(got, want), f"{top}, turn {turn}: other tokens than the gated model"
            _check_token_by_token(model, given, f"{top}, turn {turn}")


def _check_token_by_token(model: Any, given: dict[str, Any], what: str) -> None:
    """The model must find its place in the sequence by the cache alone: nobody tells it positions."""
    given = {k: v for k, v in given.items() if k not in ("attention_mask", "use_cache")}
    name = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    steps, cache = [], None
    with torch.no_grad():
        want = model(**given, use_cache=False).logits
        ids = given.pop(name)
        for token in ids[:, :9].split(1, dim=1):
            out = model(**given, **{name: token}, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    same([torch.cat(steps, 1)], [want[:, :9]], f"{what}, token by token")


def check_refuses(kind: str) -> None:
    """What cannot be cut exactly refuses, and says why; it can still be gated."""
    model = tiny(kind)
    for site in sites(model):
        if not site.part.uncuttable:
            continue
        mask = Mask.without([site], {0: [0]})
        with gated([site], mask):
            answers(model, inputs(model))
        said = ""
        try:
            cut(model, mask)
        except EspalierError as error:
            said = str(error)
        assert site.part.uncuttable in said, f"{site} should say why it is not cut; it said {said!r}"


CHECKS: dict[str, Callable[[str], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
