"""Columns of a sparse matrix, combined."""

from itertools import chain, combinations

import pytest
import torch

from espalier.core.errors import InvalidValueError
from espalier.selection.columns import combine_columns, pack_columns


def sparse(rows=40, columns=24, zeros=0.8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=draw)
    return matrix.masked_fill(torch.rand(rows, columns, generator=draw) < zeros, 0)


@pytest.mark.parametrize(("width", "conflicts"), [(8, 0.5), (4, 0.1), (3, 0.0), (1, 9.0)])
def test_every_row_of_a_group_has_one_weight_at_most(width, conflicts):
    matrix = sparse()
    groups = combine_columns(matrix, width, conflicts)
    assert sorted(chain.from_iterable(groups)) == list(range(24))
    assert max(map(len, groups)) <= width
    values, index = pack_columns(matrix, groups)
    for number, group in enumerate(groups):
        part = matrix[:, group]
        lost = int(((part != 0).sum(1) - 1).clamp(min=0).sum())
        assert lost <= conflicts * 40
        assert torch.equal(values[:, number].abs(), part.abs().amax(1))
        assert set(index[:, number].tolist()) <= set(group)
    assert len(groups) == 24 if width == 1 else len(groups) < 24


def test_the_packed_product_is_that_of_the_masked_matrix():
    matrix, x = sparse(), torch.randn(24, generator=torch.Generator().manual_seed(1))
    values, index = pack_columns(matrix, combine_columns(matrix))
    masked = torch.zeros_like(matrix).scatter_(1, index, values)
    assert 0 < int((masked != 0).sum()) < int((matrix != 0).sum())
    assert torch.allclose((values * x[index]).sum(1), masked @ x, atol=1e-5)
    assert values.shape[1] < 24 / 2


def test_columns_without_a_common_row_lose_nothing():
    """Three columns of which two fit together: the only grouping into two that keeps every weight."""
    matrix = torch.tensor([[1.0, 0, 2], [0, 3, 0], [4, 0, 5], [0, 6, 0]])
    groups = combine_columns(matrix, 2, 0.0)
    assert len(groups) == 2
    clashes = [bool(((matrix[:, a] != 0) & (matrix[:, b] != 0)).any()) for a, b in combinations(range(3), 2)]
    assert clashes == [False, True, False]
    assert [0, 2] not in groups
    values, _ = pack_columns(matrix, groups)
    assert int((values != 0).sum()) == int((matrix != 0).sum())


def test_wrong_matrices_and_groups():
    for wrong in ((torch.ones(3), 2, 0.1), (torch.ones(3, 3), 0, 0.1), (torch.ones(3, 3), 2, float("nan"))):
        with pytest.raises(InvalidValueError):
            combine_columns(*wrong)
    with pytest.raises(InvalidValueError) as error:
        pack_columns(torch.ones(2, 3), [[0, 1]])
    assert error.value.parameter == "groups"
