"""Products by oneDNN are those of torch up to rounding in every layout, and torch's own return afterwards."""

import copy
import threading

import pytest
import torch
import toys

from espalier import criteria, cut, remove_lowest, repair, sites
from espalier.core.batches import Batches
from espalier.engine import products
from espalier.engine.hessians import add_products
from espalier.engine.precision import arithmetic
from espalier.evaluation.latency import time_models
from espalier.experiment.recovery import Recovery

SIZE = 200  # the cube of it is above `LEAST`


@pytest.fixture
def routed(monkeypatch):
    """Take oneDNN on any processor; return the shapes of the products that it got."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN here")
    seen = []
    real = products._product

    def product(a, b, bias=None):
        seen.append((*a.shape, b.shape[1]))
        return real(a, b, bias)

    monkeypatch.setattr(products, "worthwhile", lambda: True)
    monkeypatch.setattr(products, "_product", product)
    return seen


def layouts():
    big = torch.randn(3 * SIZE, 3 * SIZE, generator=torch.Generator().manual_seed(0))
    return {
        "plain": big[:SIZE, :SIZE].contiguous(),
        "transposed": big[:SIZE, :SIZE].t().contiguous().t(),
        "part": big[SIZE : 2 * SIZE, 7 : SIZE + 7],
        "part transposed": big[7 : SIZE + 7, SIZE : 2 * SIZE].t(),
        "every other": big[: 2 * SIZE : 2, : 2 * SIZE : 2],
        "expanded": big[:1, :SIZE].expand(SIZE, SIZE),
        "unaligned": big.flatten()[3 : 3 + SIZE * SIZE].view(SIZE, SIZE),
    }


@pytest.mark.parametrize("right", layouts())
@pytest.mark.parametrize("left", layouts())
def test_every_layout(routed, left, right):
    a, b, bias = layouts()[left], layouts()[right], torch.randn(SIZE)
    exact = a.double() @ b.double()
    with products.fast_products():
        product, sum_ = a @ b, torch.addmm(bias, a, b)
    torch.testing.assert_close(product.double(), exact, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(sum_.double(), exact + bias, atol=1e-4, rtol=1e-5)
    assert routed == [(SIZE, SIZE, SIZE)] * 2


def test_every_layout_of_a_bias(routed):
    a, row = torch.randn(SIZE, SIZE), torch.randn(2 * SIZE)
    biases = [row[::2], row.view(SIZE, 2)[:, 1], row[:1].expand(SIZE), row[:SIZE].flip(0), row[3 : SIZE + 3]]
    with products.fast_products():
        for bias in biases:
            want = (a.double() @ a.double() + bias).float()
            torch.testing.assert_close(torch.addmm(bias, a, a), want, atol=1e-4, rtol=1e-5)
    assert len(routed) == len(biases)


def test_gradients_and_second_derivatives(routed):
    x, layer = torch.randn(3, SIZE, SIZE), torch.nn.Linear(SIZE, SIZE)

    def derivatives():
        grad = torch.autograd.grad(layer(x).tanh().sum(), layer.weight, create_graph=True)[0]
        return [grad.detach(), *torch.autograd.grad(grad.square().sum(), layer.parameters())]

    want = derivatives()
    with products.fast_products():
        found = derivatives()
    assert len(routed) > 3
    for one, other in zip(found, want, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4 * float(other.abs().max()), rtol=0)


def test_what_is_small_or_not_fp32_is_left_to_torch(routed):
    with products.fast_products():
        for a, b in [(torch.randn(9, 9), torch.randn(9, 4)), (torch.randn(0, 5), torch.randn(5, 3))]:
            torch.testing.assert_close(a @ b, (a[:, :, None] * b).sum(1))
        for dtype in (torch.float64, torch.bfloat16):
            a = torch.ones(SIZE, SIZE, dtype=dtype)
            assert torch.equal(a @ a, torch.full((SIZE, SIZE), SIZE, dtype=dtype))
        a, bias = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
        want = (0.5 * bias.double() + a.double() @ a.double()).float()
        torch.testing.assert_close(torch.addmm(bias, a, a, beta=0.5), want, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(torch.addmm(bias[0], a[:9], a, alpha=2), bias[0] + 2 * a[:9].mm(a))
    assert routed == []


@pytest.mark.parametrize("shapes", [((3, 4), (5, 6)), ((SIZE, SIZE), (9, SIZE)), ((3,), (3, 4))])
def test_mistakes_are_explained_by_torch(routed, shapes):
    a, b = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(RuntimeError) as plain:
        torch.mm(a, b)
    with products.fast_products(), pytest.raises(RuntimeError) as inside:
        torch.mm(a, b)
    assert str(inside.value) == str(plain.value)
    with products.fast_products(), pytest.raises(RuntimeError):
        torch.mm(torch.zeros(3, 3), torch.zeros(3, 3).double())


def test_not_finite_stays_not_finite(routed):
    a = torch.zeros(SIZE, SIZE)
    a[0, 0], a[1, 1] = torch.nan, torch.inf
    with products.fast_products():
        found = a @ torch.eye(SIZE)
    assert found[0].isnan().all()
    assert found[1, 1] == torch.inf
    assert not found[2:].any()
    assert routed


def test_torch_is_as_it_was_afterwards(routed):
    a = torch.randn(SIZE, SIZE)
    before = a @ a

    def fail_inside():
        with products.fast_products(), products.fast_products():
            a @ a
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail_inside()
    assert len(routed) == 1
    assert torch.equal(a @ a, before)
    assert len(routed) == 1
    assert products._inside == 0
    assert products._library is None


def test_what_is_timed_is_not_routed(routed):
    model = torch.nn.Linear(SIZE, SIZE)
    model.forward = lambda input_ids: torch.nn.Linear.forward(model, input_ids)
    with products.fast_products():
        time_models([model], {"input_ids": torch.randn(SIZE, SIZE)}, rounds=2, warmup=1)
        assert routed == []
        model(input_ids=torch.randn(SIZE, SIZE))
        with products.plain_products(), products.fast_products():
            model(input_ids=torch.randn(SIZE, SIZE))
    assert len(routed) == 1


def test_a_failed_start_leaves_torch_as_it_was(routed, monkeypatch):
    real = torch.library.Library.impl

    def fail(library, name, *args):
        if name == "addmm":
            raise MemoryError
        return real(library, name, *args)

    with monkeypatch.context() as patch:
        patch.setattr(torch.library.Library, "impl", fail)
        with pytest.raises(MemoryError), products.fast_products():
            pass
    assert (products._inside, products._library) == (0, None)
    a = torch.randn(SIZE, SIZE)
    a @ a
    assert routed == []
    with products.fast_products():
        a @ a
    assert len(routed) == 1


def test_sums_of_products_stay_precise_in_bf16(routed):
    x = torch.randn(3 * SIZE, 2 * SIZE)
    for precision in ("fp32", "bf16"):
        total = torch.zeros(2 * SIZE, 2 * SIZE)
        with arithmetic(precision):
            add_products(total, x)
        want = x.double().T @ x.double()
        torch.testing.assert_close(total.tril().double(), want.tril(), atol=1e-3, rtol=1e-5)


def test_trainings_scores_and_repairs_use_it(routed, tmp_path, monkeypatch):
    monkeypatch.setattr(products, "LEAST", 1 << 10)
    monkeypatch.setattr(products, "NARROW", 4)
    session = toys.toy_session()
    session.predict(session.model, "test")
    assert routed
    routed.clear()
    found = sites(session.model, "neurons")
    mask = remove_lowest(criteria.load("magnitude")(session.model, found, None), 0.5)
    small = cut(copy.deepcopy(session.model), mask)
    repair(small, session.model, Batches(session.calibration))
    assert routed
    routed.clear()
    Recovery(epochs=1, examples=8, batch_size=8).after(session, small, 0)
    assert routed


def test_threads_share_it_and_the_last_one_ends_it(routed):
    inside, done = threading.Event(), threading.Event()

    def other():
        with products.fast_products():
            inside.set()
            done.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(20)
    with products.fast_products():
        pass
    assert products._library is not None
    done.set()
    thread.join()
    assert products._library is None


def test_a_model_inside_is_the_model_outside(routed):
    model = torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE), torch.nn.GELU(), torch.nn.Linear(SIZE, 2))
    x = torch.randn(SIZE, SIZE)
    with torch.no_grad():
        want = model(x)
        with arithmetic("fp32"):
            torch.testing.assert_close(model(x), want, atol=1e-5, rtol=1e-5)
        count = len(routed)
        assert count == 1
        with arithmetic("bf16"):
            assert model(x).dtype == torch.bfloat16
    assert len(routed) == count


def test_only_wide_processors_of_another_maker_gain(monkeypatch):
    check = products.worthwhile.__wrapped__
    for maker, family, width, want in [
        ("AuthenticAMD", 26, "AVX512", True),
        ("AuthenticAMD", 25, "AVX512", False),  # computes it in two halves
        ("GenuineIntel", 6, "AVX512", False),
        ("AuthenticAMD", 26, "AVX2", False),
        ("", 0, "AVX512", False),
    ]:
        monkeypatch.setattr(products, "_make", lambda maker=maker, family=family: (maker, family))
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda width=width: width)
        assert check() is (
            want and torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
        )
