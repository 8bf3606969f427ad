"""Curves: the area, the tolerance rule, collapse, trials."""

import pytest

from espalier.analysis.curves import Curve, area_weights, levels_above, shared_levels
from espalier.core.errors import InvalidValueError

FALLING = Curve((0, 0.25, 0.5, 1), (0.9, 0.89, 0.8, 0.5))
REBOUND = Curve((0, 0.25, 0.5, 0.75), (0.9, 0.7, 0.895, 0.1))
TRIALS = ((0.9, 0.8, 0.5), (0.9, 0.6, 0.3), (0.9, 0.7, 0.1))


def line(values, base=0.9):
    return Curve((0, 0.5, 0.6, 0.7, 0.8), (base, *values))


def test_the_area_is_the_mean_height():
    assert Curve((0, 0.5, 1), (0.6, 0.6, 0.6)).area() == pytest.approx(0.6)
    assert FALLING.area() == pytest.approx((0.895 + 0.845 + 2 * 0.65) / 4)
    assert Curve((0,), (0.7,)).area() == 0.7
    assert FALLING.area((0, 1)) == pytest.approx(0.7)


def test_levels_may_be_uneven():
    """Measured at every sixth unit or at every one, a straight line has one area."""
    fine = Curve(tuple(k / 12 for k in range(13)), tuple(1 - k / 12 for k in range(13)))
    coarse = Curve((0, 0.5, 1), (1.0, 0.5, 0.0))
    assert fine.area() == pytest.approx(coarse.area()) == pytest.approx(0.5)


def test_weights_of_the_area():
    levels = (0, 0.1, 0.4, 1)
    values = (0.9, 0.8, 0.85, 0.3)
    found = sum(w * v for w, v in zip(area_weights(levels), values))
    assert found == pytest.approx(Curve(levels, values).area())
    assert area_weights((0,)) == [1.0]
    assert sum(area_weights((0, 0.5, 0.8))) == pytest.approx(1)


def test_the_tolerance_rule():
    assert FALLING.within(0.01) == 0.25
    assert FALLING.within(0) == 0
    assert REBOUND.within(0.01) == 0  # a rebound does not count
    assert Curve((0, 1), (0.99, 0.98)).within(0.01) == 1  # not lost to rounding
    assert line([0.9, 0.89, 0.88, 0.7]).within(0.01) == 0.6
    assert line([0.9, 0.8, 0.9, 0.9]).within(0.01) == 0.5
    assert line([0.88, 0.8, 0.7, 0.6]).within(0.01) == 0
    assert line([0.9, 0.9, 0.9, 0.9]).within(0.01) == 0.8


def test_collapse():
    assert line([0.9, 0.8, 0.5, 0.6]).collapse(0.5) == 0.7  # as good as the most frequent class
    assert line([0.9, 0.8, 0.7, 0.6]).collapse(0.5) is None
    assert line([0.9, 0.8, 0.1, 0.1]).collapse(None) is None
    assert line([0.1, 0.1, 0.1, 0.1], base=0.1).collapse(0.5) == 0.5  # the base itself is no level


def test_trials():
    trials = Curve.of_trials((0, 0.5, 1), TRIALS)
    assert trials.values == pytest.approx((0.9, 0.7, 0.3))
    assert trials.lowest().values == (0.9, 0.6, 0.1)
    assert trials.highest().values == (0.9, 0.8, 0.5)
    assert trials.trial(1) == Curve((0, 0.5, 1), TRIALS[1])
    assert FALLING.trial(0) is FALLING


def test_levels_of_two_curves():
    trials = Curve.of_trials((0, 0.5, 1), TRIALS)
    assert shared_levels(FALLING, trials) == [0.5, 1]
    assert levels_above(FALLING, trials) == [0.5, 1]
    assert levels_above(trials, FALLING) == []


@pytest.mark.parametrize(
    ("removed", "values", "parameter"),
    [
        ((0, 1), (0.9,), "values"),
        ((), (), "values"),
        ((0.5, 1), (0.9, 0.8), "removed"),
        ((0, 0.5, 0.5), (0.9, 0.8, 0.7), "removed"),
    ],
)
def test_wrong_curves(removed, values, parameter):
    with pytest.raises(InvalidValueError) as error:
        Curve(removed, values)
    assert error.value.parameter == parameter


def test_wrong_trials():
    with pytest.raises(InvalidValueError) as error:
        Curve.of_trials((0,), ())
    assert error.value.parameter == "trials"
    with pytest.raises(InvalidValueError):
        Curve.of_trials((0, 1), ((0.9, 0.8), (0.9,)))


def test_a_level_that_was_not_measured():
    assert FALLING.at(0.1 + 0.15) == 0.89  # rounding does not hide a level
    assert FALLING.find(0.75) is None
    with pytest.raises(InvalidValueError) as error:
        FALLING.at(0.75)
    assert error.value.parameter == "removed"
