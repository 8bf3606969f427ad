"""Gates change nothing but what they gate, and scores do not depend on how they are computed."""

import pytest
import torch

from espalier import Batches, Mask, Scores, cut, gated, masked, sites
from espalier.architectures.table import architectures
from espalier.core.errors import DataError, FolderError, InvalidValueError, UnknownNameError
from espalier.criteria import criterion as declare
from espalier.criteria import load as criterion
from espalier.testing.tiny import inputs, outputs, tiny, uneven


def hooks(model):
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def test_transformers_ignores_head_mask_and_masked_does_not(bert):
    """The reason for `masked`: v5 takes a mask of zeros and changes nothing."""
    given = inputs(bert)
    want = outputs(bert, given)
    ignored = outputs(bert, {**given, "head_mask": torch.zeros(3, 6)})
    assert torch.equal(ignored[0], want[0])
    with masked(bert, Mask.without(sites(bert, "heads"), {0: range(6)})):
        assert not torch.allclose(outputs(bert, given)[0], want[0])
    assert torch.equal(outputs(bert, given)[0], want[0])


def test_everything_is_as_before_even_after_an_error(bert):
    given = inputs(bert)
    want = outputs(bert, given)
    found = sites(bert, "weights")
    mask = Mask({s.name: torch.rand(s.shape) > 0.5 for s in found})

    def fail():
        with masked(bert, uneven(sites(bert), 0)), masked(bert, mask):
            assert hooks(bert)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert not hooks(bert)
    assert torch.equal(outputs(bert, given)[0], want[0])


def test_wrong_masks_are_errors(bert):
    name = sites(bert, "heads")[0].name
    for wrong in (Mask(), Mask({"x": torch.ones(6)}), Mask({name: torch.ones(5)}), None):
        with pytest.raises(InvalidValueError) as error, masked(bert, wrong):
            pass
        assert error.value.parameter == "mask"
    with pytest.raises(InvalidValueError) as error, gated(sites(bert, "heads")[:1], {name: torch.ones(5)}):
        pass
    assert error.value.parameter == "values"


def test_a_gate_per_example_gives_each_its_own_gradient(bert):
    """One backward pass over a batch ≡ one per example."""
    found = sites(bert, "heads", "neurons")
    given = inputs(bert, batch=3)
    labels = torch.tensor([0, 1, 1])
    batched = {s.name: torch.ones(3, s.units) for s in found}
    with gated(found, batched) as gates:
        loss = bert(**given, labels=labels).loss * 3
        rows = torch.autograd.grad(loss, list(gates.values()))
    for i in range(3):
        alone = {k: v[i : i + 1] for k, v in given.items()}
        with gated(found) as gates:
            loss = bert(**alone, labels=labels[i : i + 1]).loss
            single = torch.autograd.grad(loss, list(gates.values()))
        for a, b in zip(rows, single):
            torch.testing.assert_close(a[i], b, atol=1e-6, rtol=1e-4)


def batches(size):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 64, (12, 9), generator=generator)
    labels = torch.randint(0, 2, (12,), generator=generator)
    return Batches({"input_ids": i, "labels": y} for i, y in zip(ids.split(size), labels.split(size)))


@pytest.mark.parametrize("name", ["magnitude", "random", "taylor"])
def test_scores_do_not_depend_on_batch_size_and_leave_no_trace(bert, name):
    bert.train()
    bert.bert.encoder.layer[0].eval()
    frozen = bert.bert.embeddings.word_embeddings.weight.requires_grad_(False)
    found = sites(bert, "heads", "neurons")
    before = {k: v.clone() for k, v in bert.state_dict().items()}
    score = criterion(name)
    want = score(bert, found, batches(12))
    for size in (1, 5):
        got = score(bert, found, batches(size))
        for site in found:
            torch.testing.assert_close(got[site.name], want[site.name], rtol=1e-4, atol=1e-9)
    assert bert.training
    assert not bert.bert.encoder.layer[0].training
    assert not frozen.requires_grad
    assert all(p.grad is None for p in bert.parameters())
    assert not hooks(bert)
    assert all(torch.equal(before[k], v) for k, v in bert.state_dict().items())


def energy(out, _):
    """Some loss that any model has."""
    return sum(t.square().mean() for t in out.to_tuple() if torch.is_tensor(t) and t.is_floating_point())


@pytest.mark.parametrize("kind", sorted(architectures()))
@pytest.mark.parametrize("name", ["magnitude", "random", "taylor"])
def test_every_criterion_scores_every_architecture_also_after_a_cut(kind, name):
    model = tiny(kind)
    for turn in range(2):
        found = sites(model, "heads", "neurons")
        data = Batches([inputs(model)], loss=energy)
        data[0].pop("use_cache", None)
        scores = criterion(name)(model, found, data)
        assert all(scores[s.name].shape == s.shape for s in found)
        assert all(scores[s.name].std() > 0 for s in found if s.units > 1)
        if not turn:
            cut(model, uneven(found, 2), report=False)


def test_magnitude_in_low_precision_keeps_its_order():
    model = tiny("bert", intermediate_size=512)
    found = sites(model, "neurons")
    exact = criterion("magnitude")(model.to(torch.bfloat16).double(), found)
    low = criterion("magnitude")(model.to(torch.bfloat16), found)
    for site in found:
        torch.testing.assert_close(low[site.name], exact[site.name], rtol=1e-6, atol=0)


def test_a_loss_by_example_makes_token_losses_independent_of_batches():
    model = tiny("gpt2", "AutoModelForCausalLM")
    found = sites(model, "heads")
    ids = inputs(model, batch=4)["input_ids"]
    labels = ids.clone()
    labels[0, 3:] = -100

    def by_example(out, batch):
        flat = torch.nn.functional.cross_entropy(
            out.logits[:, :-1].transpose(1, 2), batch["labels"][:, 1:], reduction="none"
        )
        counted = (batch["labels"][:, 1:] != -100).sum(1)
        return (flat.sum(1) / counted).mean()

    scores = [
        criterion("taylor")(
            model,
            found,
            Batches(
                [{"input_ids": i, "labels": y} for i, y in zip(ids.split(n), labels.split(n))],
                loss=by_example,
            ),
        )
        for n in (1, 4)
    ]
    for site in found:
        torch.testing.assert_close(scores[0][site.name], scores[1][site.name], rtol=1e-4, atol=1e-9)


def test_a_head_that_writes_nothing_is_worth_nothing(bert):
    site = sites(bert, "heads")[1]
    with torch.no_grad():
        site.module("write").weight.index_fill_(1, site.index("write")[4], 0)
    scores = criterion("taylor")(bert, sites(bert, "heads"), batches(4))
    assert scores[site.name].argmin() == 4
    assert scores[site.name][4] == 0


def test_criteria_by_name_and_by_file(tmp_path, bert):
    with pytest.raises(UnknownNameError) as error:
        criterion("tailor")
    assert error.value.nearest == "taylor"
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from espalier import Scores, criterion\n"
        "@criterion('heads')\n"
        "def mine(model, sites, batches):\n"
        "    return Scores({s.name: s.weight('v').flatten(1).norm(dim=1) for s in sites})\n"
    )
    scores = criterion(str(mine))(bert, sites(bert, "heads"))
    assert len(scores) == 3
    with pytest.raises(InvalidValueError):
        criterion(str(mine))(bert, sites(bert, "neurons"))
    mine.write_text("from espalier import criterion\n@criterion('heads')\ndef other(m, s, b): ...\n")
    with pytest.raises(UnknownNameError) as error:
        criterion(str(mine))
    assert (error.value.name, error.value.known) == ("mine", ["other"])
    mine.write_text("x = 1\n")
    with pytest.raises(UnknownNameError):
        criterion(str(mine))
    with pytest.raises(FolderError):
        criterion(str(tmp_path / "none.py"))


def test_criteria_accept_plain_lists_and_single_sites(bert, tmp_path):
    found = sites(bert, "heads")
    with pytest.raises(DataError):
        criterion("taylor")(bert, found)
    plain = list(batches(4))
    assert len(criterion("taylor")(bert, found, plain)) == 3
    assert len(criterion("magnitude")(bert, found[0])) == 1
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from espalier import criterion\n@criterion('heads')\ndef mine(m, sites, b):\n    return None\n"
    )
    with pytest.raises(InvalidValueError):
        criterion(mine)(bert, found)


def test_a_criterion_must_give_every_unit_a_number(bert):
    @declare("heads")
    def broken(model, sites, batches):
        return Scores({s.name: torch.full(s.shape, torch.nan) for s in sites})

    with pytest.raises(InvalidValueError):
        broken(bert, sites(bert, "heads"))
