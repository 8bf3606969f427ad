"""Convolution nets: filters are removed with all that depends on them, norms folded, constants absorbed."""

import copy

import pytest
import torch
from torch import nn

from espalier import Mask, Scores, remove_lowest
from espalier.convnets import (
    absorb_filters,
    filter_sites,
    fold_batch_norms,
    fold_layer_norm,
    l1,
    load_net,
    remove_filters,
    save_net,
    scales,
    slimmed,
    weight_sites,
    zero_filters,
)
from espalier.core.errors import FormatError, InvalidValueError, UnknownNameError, UnsupportedError

EXAMPLE = torch.zeros(1, 3, 12, 12)


class Block(nn.Module):
    def __init__(self, width, padding=1):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=padding, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=2 - padding)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class Residual(nn.Module):
    """Stem, two residual blocks, a depthwise convolution, a classifier of flattened maps."""

    def __init__(self, classes=5):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.head = nn.Linear(8 * 4, classes)

    def forward(self, x):
        x = self.blocks(torch.relu(self.norm(self.stem(x))))
        return self.head(nn.functional.adaptive_avg_pool2d(self.depthwise(x), 2).flatten(1))


class Plain(nn.Module):
    """Convolutions without padding, one without a norm, a linear layer that reads flattened maps."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 4, 3, bias=False)
        self.head = nn.Linear(4 * 4, 5)

    def forward(self, x):
        x = self.conv2(nn.functional.gelu(self.norm(self.conv1(x))))
        return self.head(nn.functional.max_pool2d(torch.sigmoid(x), 4).flatten(1))


def shaken(net):
    """Every parameter and statistic is something else than what it starts as."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, t in [*net.named_parameters(), *net.named_buffers()]:
            if t.is_floating_point():
                noise = torch.rand(t.shape, generator=generator)
                t.copy_(0.5 + noise if "var" in name else (noise - 0.5))
    return net.eval()


def images(n=4):
    return torch.randn(n, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def uneven(found):
    return Mask({s.name: torch.arange(s.units) % (2 + i) != 0 for i, s in enumerate(found)})


def gated(net, found, mask):
    """Return the outputs with the maps of removed filters set to zero where they are read."""

    def hook(parts):
        def zero(layer, args):
            x = args[0].clone()
            for site, part in parts:
                x[:, part.channels[~mask[site.name][part.units]]] = 0
            return (x,)

        return zero

    by_layer = {}
    for site in found:
        for part in site.readers:
            by_layer.setdefault(part.module, []).append((site, part))
    handles = [layer.register_forward_pre_hook(hook(parts)) for layer, parts in by_layer.items()]
    try:
        with torch.no_grad():
            return net(images())
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("make", [Residual, Plain])
def test_removed_is_masked_and_counted(make, tmp_path):
    torch.manual_seed(0)
    net = shaken(make())
    dense, found = copy.deepcopy(net), filter_sites(net, EXAMPLE)
    mask = uneven(found)
    wanted = gated(net, found, mask)
    plan = remove_filters(net, mask, EXAMPLE)
    assert torch.allclose(net(images()), wanted, atol=1e-5)
    assert not torch.allclose(wanted, dense(images()), atol=1e-2)
    left = filter_sites(net, EXAMPLE)
    assert [s.units for s in left] == [int(mask[s.name].sum()) for s in found]
    assert plan.kept == sum(s.units for s in left) / sum(s.units for s in found)
    save_net(net, plan, tmp_path / "net")
    again = load_net(shaken(make()), tmp_path / "net", EXAMPLE).eval()
    assert torch.equal(again(images()), net(images()))


def test_filters_that_are_added_are_one_unit():
    found = {site.name: site for site in filter_sites(Residual(), EXAMPLE)}
    assert list(found) == ["stem/filters", "blocks.0.conv1/filters", "blocks.1.conv1/filters"]
    # the stem, both second convolutions and the depthwise one
    assert len(found["stem/filters"].writers) == 4
    assert len(found["stem/filters"].norms) == 3


def test_l1_is_the_sum_of_all_filters_of_a_unit_and_follows_permutations():
    net = Residual()
    site = filter_sites(net, EXAMPLE)[0]
    writers = [net.stem, net.blocks[0].conv2, net.blocks[1].conv2, net.depthwise]
    want = sum(w.weight.abs().flatten(1).sum(1) for w in writers).double()
    assert torch.allclose(l1([site])[site.name], want)
    inner = filter_sites(net, EXAMPLE)[1]
    before, order = l1([inner])[inner.name], torch.randperm(8)
    with torch.no_grad():
        net.blocks[0].conv1.weight.copy_(net.blocks[0].conv1.weight[order].clone())
    assert torch.equal(l1([inner])[inner.name], before[order])


def test_batch_norms_are_folded_and_scores_need_them():
    net = shaken(Residual())
    want = net(images())
    assert fold_batch_norms(net, EXAMPLE) == 5
    assert not [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert torch.allclose(net(images()), want, atol=1e-5)
    with pytest.raises(UnsupportedError):
        scales(filter_sites(net, EXAMPLE))


def test_a_norm_is_not_folded_into_what_others_read():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)

        def forward(self, x):
            x = self.conv(x)
            return self.last(torch.relu(self.norm(x)) + x)

    net = shaken(Twice())
    want = net(images())
    assert fold_batch_norms(net, EXAMPLE) == 0
    assert torch.equal(net(images()), want)


def test_a_layer_norm_is_folded_into_the_next_layers():
    torch.manual_seed(0)
    norm, readers = nn.LayerNorm(6), [nn.Linear(6, 4), nn.Linear(6, 3, bias=False)]
    with torch.no_grad():
        norm.weight.uniform_(-1, 1)
        norm.bias.uniform_(-1, 1)
    x = torch.randn(5, 6)
    want = [layer(norm(x)) for layer in readers]
    fold_layer_norm(norm, readers)
    assert torch.equal(norm.weight, torch.ones(6))
    assert torch.equal(norm.bias, torch.zeros(6))
    assert all(torch.allclose(layer(norm(x)), w, atol=1e-6) for layer, w in zip(readers, want))


def test_constants_of_zeroed_filters_are_absorbed():
    """Removal after absorption is the zeroed net; removal alone is the masked one, another net."""
    net = shaken(Plain())
    found = filter_sites(net, EXAMPLE)
    mask, zeroed, alone = uneven(found), copy.deepcopy(net), copy.deepcopy(net)
    zero_filters(zeroed, mask, EXAMPLE)
    want = zeroed(images())
    absorb_filters(net, mask, EXAMPLE)
    remove_filters(net, mask, EXAMPLE)
    remove_filters(alone, mask, EXAMPLE)
    assert torch.allclose(net(images()), want, atol=1e-5)
    assert not torch.allclose(alone(images()), want, atol=1e-2)


def test_a_padded_reader_has_no_constant():
    net = shaken(Residual())
    site = filter_sites(net, EXAMPLE)[1]
    mask = Mask({site.name: torch.arange(site.units) > 3})
    with torch.no_grad():
        net.blocks[0].bn1.bias.fill_(5)
    with pytest.raises(UnsupportedError):
        absorb_filters(copy.deepcopy(net), mask, EXAMPLE)
    with torch.no_grad():
        net.blocks[0].bn1.bias.fill_(-50)  # relu of it is zero
    zeroed = copy.deepcopy(net)
    zero_filters(zeroed, mask, EXAMPLE)
    absorb_filters(net, mask, EXAMPLE)
    remove_filters(net, mask, EXAMPLE)
    assert torch.allclose(net(images()), zeroed(images()), atol=1e-5)


def test_slimming_by_hand_and_a_scale_of_zero_is_dropped():
    net = Residual()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with torch.no_grad():
        net.norm.weight.copy_(torch.tensor([1.0, 0.2, 0.05, -0.05, -1.0, 0.1, 0.0, 0.3]))
    with slimmed(net, optimizer, strength=0.2):
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    want = torch.tensor([0.9, 0.1, 0.0, 0.0, -0.9, 0.0, 0.0, 0.2])
    assert torch.allclose(net.norm.weight, want, atol=1e-6)
    optimizer.step()
    assert torch.allclose(net.norm.weight, want, atol=1e-6)  # outside nothing is pulled
    plain = Plain()
    with torch.no_grad():
        plain.norm.weight[::2] = 0
    site = filter_sites(plain, EXAMPLE)[0]
    mask = remove_lowest(scales([site]), 0.5)
    assert mask[site.name].tolist() == [False, True] * 3


def test_n_of_m_runs_along_the_channels_that_a_convolution_reads():
    net = Residual()
    found = [s for s in weight_sites(net) if s.shape[1] == 8]
    scores = Scores({s.name: s.linear.weight.abs() for s in found}, {s.name: s.input_axis for s in found})
    mask = remove_lowest(scores, scope="2:4")
    for site in found:
        kept = mask[site.name]
        assert (kept.unflatten(1, (2, 4)).sum(2) == 2).all()
        best = site.linear.weight.abs().unflatten(1, (2, 4)).topk(2, dim=2).values.sum()
        assert torch.allclose((site.linear.weight.abs() * kept).sum(), best)


def test_wrong_input_is_refused():
    net = Residual()
    found = filter_sites(net, EXAMPLE)
    none = Mask({found[0].name: torch.zeros(8).bool()})
    for mask, kind in (
        (none, InvalidValueError),
        (Mask({"x/filters": torch.ones(8).bool()}), UnknownNameError),
        (Mask({found[0].name: torch.ones(9).bool()}), InvalidValueError),
    ):
        with pytest.raises(kind) as error:
            remove_filters(net, mask, EXAMPLE)
        assert error.value.parameter == "mask"
    with pytest.raises(InvalidValueError) as error:
        filter_sites(net, torch.zeros(1, 4, 12, 12))
    assert error.value.parameter == "example"
    with pytest.raises(InvalidValueError) as error:  # another size than the flattened maps have
        filter_sites(Plain(), torch.zeros(1, 3, 20, 20))
    assert error.value.parameter == "example"
    assert [s.units for s in filter_sites(net, torch.zeros(2, 3, 20, 20))] == [8, 8, 8]  # pooled to one size
    net.depthwise = nn.Conv2d(8, 8, 3, groups=2)
    with pytest.raises(UnsupportedError):
        filter_sites(net, EXAMPLE)
    with pytest.raises(UnsupportedError):
        filter_sites(nn.Sequential(nn.Conv2d(3, 4, 3)), EXAMPLE)
    with pytest.raises(InvalidValueError), slimmed(net, torch.optim.SGD(net.parameters()), -1):
        pass
    with pytest.raises(UnsupportedError), slimmed(nn.Linear(2, 2), torch.optim.SGD(net.parameters()), 1):
        pass


def test_another_net_in_the_folder(tmp_path):
    net = Residual()
    plan = remove_filters(net, uneven(filter_sites(net, EXAMPLE)), EXAMPLE)
    save_net(net, plan, tmp_path / "net")
    with pytest.raises(FormatError):
        load_net(Residual(classes=7), tmp_path / "net", EXAMPLE)
