import pytest

from espalier.analysis.curves import Curve, Trials
from espalier.core.errors import EspalierError

FALLING = Curve((0, 1, 2, 4), (0.9, 0.89, 0.8, 0.5))
REBOUND = Curve((0, 1, 2, 3), (0.9, 0.7, 0.895, 0.1))


def test_the_area_is_the_mean_height():
    assert Curve((0, 5, 10), (0.6, 0.6, 0.6)).area() == pytest.approx(0.6)
    assert FALLING.area() == pytest.approx((0.895 + 0.845 + 2 * 0.65) / 4)
    assert Curve((0,), (0.7,)).area() == 0.7


def test_levels_may_be_uneven():
    """Measured at every sixth unit or at every one, a straight line has one area."""
    fine = Curve(tuple(range(13)), tuple(1 - k / 12 for k in range(13)))
    coarse = Curve((0, 6, 12), (1.0, 0.5, 0.0))
    assert fine.area() == pytest.approx(coarse.area()) == pytest.approx(0.5)


def test_unbroken_and_furthest_differ_by_rebounds():
    assert FALLING.unbroken(0.01) == FALLING.furthest(0.01) == 1
    assert FALLING.unbroken(0) == 0
    assert REBOUND.unbroken(0.01) == 0
    assert REBOUND.furthest(0.01) == 2
    assert Curve((0, 1), (0.99, 0.98)).unbroken(0.01) == 1  # not lost to rounding


def test_trials():
    trials = Trials((0, 2, 4), ((0.9, 0.8, 0.5), (0.9, 0.6, 0.3), (0.9, 0.7, 0.1)))
    assert trials.mean().accuracy == pytest.approx((0.9, 0.7, 0.3))
    assert trials.lowest().accuracy == (0.9, 0.6, 0.1)
    assert trials.highest().accuracy == (0.9, 0.8, 0.5)
    assert trials.beaten_by(FALLING) == {0: 0.0, 2: pytest.approx(2 / 3), 4: pytest.approx(2 / 3)}
    assert len(trials.curves) == 3


def test_wrong_curves():
    for removed, accuracy, message in (
        ((0, 1), (0.9,), "2 levels and 1 accuracies"),
        ((), (), "0 levels"),
        ((1, 2), (0.9, 0.8), "nothing removed"),
        ((0, 2, 2), (0.9, 0.8, 0.7), "rising levels"),
    ):
        with pytest.raises(EspalierError, match=message):
            Curve(removed, accuracy)
    with pytest.raises(EspalierError, match="nothing was measured at 3 units removed; the nearest is 2"):
        FALLING.at(3)
    with pytest.raises(EspalierError, match="no trials"):
        Trials((0,), ())
