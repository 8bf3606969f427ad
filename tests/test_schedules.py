"""Schedules and ramps: they begin where they should, go down, and end exactly."""

from itertools import pairwise

import pytest

from espalier import EspalierError, Ramp, cubed, cubic, geometric, linear, one_shot
from espalier.selection.schedules import SHAPES

LISTS = {"linear": linear, "cubic": cubic, "geometric": geometric, "cubed": cubed}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("keep", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("every", [1, 7, 100])
def test_endpoints_and_order(shape, keep, every):
    ramp = Ramp(keep, end=60, shape=shape, begin=10, every=every)
    kept = [ramp(step) for step in range(100)]
    assert kept[:10] == [1.0] * 10
    assert kept[60:] == [keep] * 40  # exactly, whatever the rounding
    assert all(a >= b for a, b in pairwise(kept))
    assert all(0 <= k <= 1 for k in kept)
    changes = [step for step in range(1, 100) if kept[step] != kept[step - 1]]
    assert all(ramp.due(step) for step in changes)  # whoever follows `due` misses nothing
    assert sum(map(ramp.due, range(100))) <= 50 // every + 2


@pytest.mark.parametrize("shape", LISTS)
@pytest.mark.parametrize("keep", [0.1, 0.5])
def test_a_list_is_a_ramp(shape, keep):
    steps = 12
    ramp = Ramp(keep, end=steps, shape=shape)
    got = LISTS[shape](keep, steps)
    assert got == pytest.approx([ramp(i + 1) for i in range(steps)], abs=1e-15)
    assert got[-1] == pytest.approx(keep, abs=1e-15)
    assert LISTS[shape](keep, 1) == pytest.approx(one_shot(keep))


def test_by_hand():
    """The published t³ from 50 to 80 % and Zhu and Gupta's, at a quarter, half and three quarters."""

    def sparsities(shape):
        ramp = Ramp(0.2, end=100, shape=shape, initial=0.5)
        return [round(100 * (1 - ramp(step)), 1) for step in (0, 25, 50, 75, 100)]

    assert sparsities("cubed") == [50.0, 50.5, 53.8, 62.7, 80.0]
    assert sparsities("cubic") == [50.0, 67.3, 76.2, 79.5, 80.0]
    assert sparsities("linear") == [50.0, 57.5, 65.0, 72.5, 80.0]
    assert sparsities("one-shot") == [80.0] * 5


def test_geometric_takes_the_same_share_every_time():
    kept = [1.0, *geometric(0.01, 7)]
    assert [b / a for a, b in pairwise(kept)] == pytest.approx([0.01 ** (1 / 7)] * 7)
    ramp = Ramp(0.125, end=3, shape="geometric", initial=1.0)
    assert [ramp(i) for i in range(4)] == pytest.approx([1, 0.5, 0.25, 0.125])


def test_an_empty_ramp_is_at_its_end():
    for shape in SHAPES:
        ramp = Ramp(0.5, end=0, shape=shape)
        assert ramp(0) == 0.5
        assert [step for step in range(5) if ramp.due(step)] == [0]


def test_what_makes_no_sense_is_refused():
    for wrong, says in (
        ({"keep": 0.5, "initial": 0.2}, "goes down"),
        ({"keep": 1.5}, "from 0 to 1"),
        ({"keep": 0.5, "begin": 11}, "ends after that"),
        ({"keep": 0.5, "every": 0}, "stairs"),
        ({"keep": 0.5, "shape": "linea"}, "did you mean 'linear'"),
        ({"keep": 0.0, "shape": "geometric"}, "never arrives at 0"),
    ):
        with pytest.raises(EspalierError, match=says):
            Ramp(**{"end": 10, **wrong})
