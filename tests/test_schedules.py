"""Schedules and ramps: they begin where they should, rise, and end exactly."""

from itertools import pairwise

import pytest

from espalier import Ramp, greedy, schedule
from espalier.core.errors import InvalidValueError, UnknownNameError
from espalier.selection.schedules import ONE_SHOT, SHAPES


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("remove", [0.95, 0.7, 0.0])
@pytest.mark.parametrize("every", [1, 7, 100])
def test_endpoints_and_order(shape, remove, every):
    ramp = Ramp(remove, end=60, shape=shape, begin=10, every=every)
    removed = [ramp(step) for step in range(100)]
    assert removed[:10] == [0.0] * 10
    assert removed[60:] == [remove] * 40  # exactly, whatever the rounding
    assert all(a <= b for a, b in pairwise(removed))
    assert all(0 <= r <= 1 for r in removed)
    changes = [step for step in range(1, 100) if removed[step] != removed[step - 1]]
    assert all(ramp.due(step) for step in changes)  # a loop that follows `due` misses nothing
    assert sum(map(ramp.due, range(100))) <= 50 // every + 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("remove", [0.9, 0.5])
def test_a_list_is_a_ramp(shape, remove):
    ramp = Ramp(remove, end=12, shape=shape)
    got = schedule(remove, 12, shape)
    assert got == [ramp(i + 1) for i in range(12)]
    assert got[-1] == remove
    assert schedule(remove, 1, shape) == [remove]


def test_by_hand():
    """The published t³ from 50 to 80 % and Zhu and Gupta's, at a quarter, half and three quarters."""

    def percent(shape):
        ramp = Ramp(0.8, end=100, shape=shape, initial=0.5)
        return [round(100 * ramp(step), 1) for step in (0, 25, 50, 75, 100)]

    assert percent("cubed") == [50.0, 50.5, 53.8, 62.7, 80.0]
    assert percent("cubic") == [50.0, 67.3, 76.2, 79.5, 80.0]
    assert percent("linear") == [50.0, 57.5, 65.0, 72.5, 80.0]
    assert percent(ONE_SHOT) == [80.0] * 5


def test_cubic_steps_get_smaller():
    rises = [b - a for a, b in pairwise([0, *schedule(0.9, 8, "cubic")])]
    assert rises == sorted(rises, reverse=True)


def test_geometric_removes_the_same_share_every_time():
    kept = [1.0, *(1 - removed for removed in schedule(0.99, 7, "geometric"))]
    assert [b / a for a, b in pairwise(kept)] == pytest.approx([0.01 ** (1 / 7)] * 7)
    ramp = Ramp(0.875, end=3, shape="geometric")
    assert [ramp(i) for i in range(4)] == pytest.approx([0, 0.5, 0.75, 0.875])


def test_greedy():
    assert greedy(0.5, 4) == [0.25, 0.5]
    assert greedy(1, 5, step=2) == [0.4, 0.8, 1.0]
    assert greedy(0, 5) == []
    assert greedy(1, 1) == [1.0]
    assert schedule(0.5, 2, "linear") == [0.25, 0.5]


def test_an_empty_ramp_is_at_its_end():
    for shape in SHAPES:
        ramp = Ramp(0.5, end=0, shape=shape)
        assert ramp(0) == 0.5
        assert [step for step in range(5) if ramp.due(step)] == [0]


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"remove": 0.5, "initial": 0.8}, "initial"),
        ({"remove": 1.5}, "remove"),
        ({"remove": 0.5, "begin": 11}, "begin"),
        ({"remove": 0.5, "every": 0}, "begin"),
        ({"remove": 0.5, "shape": "linea"}, "schedule"),
        ({"remove": 1.0, "shape": "geometric"}, "remove"),
    ],
)
def test_impossible_ramps_are_refused(wrong, parameter):
    with pytest.raises(InvalidValueError) as error:
        Ramp(**{"end": 10, **wrong})
    assert error.value.parameter == parameter
    if isinstance(error.value, UnknownNameError):
        assert error.value.nearest == "linear"


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda: schedule(72, 3), "remove"),
        (lambda: schedule(-1, 2, "linear"), "remove"),
        (lambda: schedule(0.5, 0), "steps"),
        (lambda: greedy(0.5, 0), "step"),
        (lambda: greedy(0.5, 9, step=0), "step"),
    ],
)
def test_impossible_schedules_are_refused(make, parameter):
    with pytest.raises(InvalidValueError) as error:
        make()
    assert error.value.parameter == parameter
