"""Every criterion keeps the contract by being in the folder; the contract catches bad ones."""

import pytest
import torch

from espalier import Batches, Scores, criteria, criterion, sites
from espalier.core.errors import DataError, InvalidValueError, UnknownNameError
from espalier.testing import check_criterion
from espalier.testing.criterion import CHECKS, _separate_and_fused
from espalier.testing.tiny import inputs, outputs, same, tiny


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", criteria.names())
def test_contract(name, check):
    CHECKS[check](criteria.load(name))


def test_registry():
    every = {name: criteria.load(name) for name in criteria.names()}
    for name, found in every.items():
        assert found.__name__ == name
        assert all(name in criteria.names(target) for target in found.targets)
    assert set(criteria.names("heads")) < set(every)
    assert criteria.load("gnorm").options == ["objective", "pooling", "order", "bias", "per_layer"]
    assert [name for name, found in every.items() if found.learned] == ["gates", "movement"]
    drawn = [(f.colour, f.marker) for f in every.values() if f.colour]
    assert len(set(drawn)) == len(drawn)
    with pytest.raises(UnknownNameError) as error:
        criteria.load("tailor")
    assert error.value.nearest == "taylor"


def test_no_two_criteria_are_the_same():
    """Two names for one order would be compared as if they were two methods."""
    bert = tiny("bert", "AutoModelForSequenceClassification", num_labels=3)
    given = {k: v for k, v in inputs(bert, batch=6).items() if torch.is_tensor(v)}
    data = Batches([{**given, "labels": torch.arange(6) % 3}])
    for target in ("heads", "neurons", "weights"):
        orders = []
        for name in criteria.names(target):
            scores = criteria.load(name)(bert, sites(bert, target), data)
            orders.append(torch.cat([v.flatten() for v in scores.values()]).argsort(stable=True))
        assert len(orders) > 2
        for i, one in enumerate(orders):
            assert not any(torch.equal(one, other) for other in orders[:i]), (target, i)


def test_the_two_models_of_the_fusion_check_are_one():
    separate, fused = _separate_and_fused()
    given = inputs(separate)
    same(outputs(fused, given), outputs(separate, given), "fused")
    assert "qkv" in sites(fused, "heads")[0].places


def magnitudes(found):
    return Scores({s.name: s.fold(lambda w, _: w.square()) for s in found})


def good(model, sites, batches):
    return magnitudes(sites)


def changes_weights(model, sites, batches):
    with torch.no_grad():
        sites[0].matrices[0].mul_(1.001)
    return magnitudes(sites)


def leaves_a_buffer(model, sites, batches):
    model.register_buffer("extra", torch.zeros(1))
    return magnitudes(sites)


def leaves_a_hook(model, sites, batches):
    model.register_forward_hook(lambda *_: None)
    return magnitudes(sites)


def leaves_eager_attention(model, sites, batches):
    model.set_attn_implementation("eager")
    return magnitudes(sites)


def depends_on_batch_size(model, sites, batches):
    return Scores({name: value / len(batches) for name, value in magnitudes(sites).items()})


def returns_the_reverse(model, sites, batches):
    return Scores({name: -value for name, value in magnitudes(sites).items()})


def is_random(model, sites, batches):
    return Scores({name: value * torch.rand(value.shape) for name, value in magnitudes(sites).items()})


def is_constant(model, sites, batches):
    return Scores({s.name: torch.ones(s.shape) for s in sites})


def skips_a_site(model, sites, batches):
    return magnitudes(sites[1:])


def is_infinite(model, sites, batches):
    return Scores({s.name: torch.full(s.shape, torch.inf) for s in sites})


def reads_undeclared_data(model, sites, batches):
    return Scores({name: value * batches.examples for name, value in magnitudes(sites).items()})


def reads_undeclared_labels(model, sites, batches):
    ones = sum(int(batch["labels"].sum()) for batch in batches)
    return Scores({name: value * ones for name, value in magnitudes(sites).items()})


def reads_labels_of_another_task(model, sites, batches):
    if any("labels" not in batch for batch in batches):
        raise DataError("no labels")
    return magnitudes(sites)


def takes_labels_for_granted(model, sites, batches):
    assert all(batch.get("labels").numel() for batch in batches)  # an AttributeError without
    return magnitudes(sites)


def reads_only_separate_weights(model, sites, batches):
    roles = [next(iter(site.places)) for site in sites]  # q, or all of qkv
    return Scores({s.name: s.weight(role).square().sum((1, 2)) for s, role in zip(sites, roles)})


BAD = {
    changes_weights: "leaves_model_unchanged",
    leaves_a_buffer: "leaves_model_unchanged",
    leaves_a_hook: "leaves_model_unchanged",
    leaves_eager_attention: "leaves_model_unchanged",
    depends_on_batch_size: "ignores_batch_size",
    returns_the_reverse: "scores_idle_units_as_declared",
    is_random: "is_deterministic",
    is_constant: "scores_every_unit",
    skips_a_site: "scores_every_unit",
    is_infinite: "scores_every_unit",
    reads_undeclared_data: "declares_its_data",
    reads_undeclared_labels: "declares_its_labels",
    reads_labels_of_another_task: "declares_its_labels",
    takes_labels_for_granted: "declares_its_labels",
    reads_only_separate_weights: "ignores_fusion",
}


def test_a_good_criterion_passes():
    check_criterion(criterion("heads", "neurons", "weights")(good))


@pytest.mark.parametrize("function", BAD, ids=lambda function: function.__name__)
def test_bad_criteria_are_caught(function):
    found = criterion("heads")(function)
    with pytest.raises(AssertionError):
        CHECKS[BAD[function]](found)
    with pytest.raises(AssertionError):
        check_criterion(found)


def test_what_is_declared_is_not_held_against_a_criterion():
    check_criterion(criterion("heads", batch_invariant=False, needs_data=True)(depends_on_batch_size))
    check_criterion(criterion("heads", idle="any")(returns_the_reverse))
    with pytest.raises(UnknownNameError):
        criterion("heads", idle="high")


def test_a_file_is_checked(tmp_path):
    path = tmp_path / "mine.py"
    text = "from espalier import Scores, criterion\n\n\n@criterion('heads'{more})\n"
    text += "def {name}(model, sites, batches):\n"
    text += "    return Scores({{s.name: s.fold(lambda w, _: w.abs()) for s in sites}})\n"
    path.write_text(text.format(name="mine", more=""))
    check_criterion(path)
    path.write_text(text.format(name="mine", more=", idle='zero'"))
    check_criterion(str(path))
    path.write_text(text.format(name="yours", more=""))
    with pytest.raises(InvalidValueError) as error:
        check_criterion(path)
    assert error.value.known == ["yours"]
