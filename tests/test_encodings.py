"""Sparse encodings: bit for bit, and exactly as large as their formulas say."""

from itertools import pairwise, product
from math import ceil, log2, prod

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from espalier import EspalierError
from espalier.core.errors import FormatError, InvalidValueError, UnknownNameError, UnsupportedError
from espalier.storage import encodings
from espalier.storage.encodings import (
    ENCODINGS,
    Encoded,
    Spec,
    best_spec,
    bits,
    decode,
    encode,
)
from espalier.storage.encodings.fields import Packed, pack, size, width
from espalier.storage.encodings.source import DTYPES, Source, words_of

SHAPES = [(), (1,), (0,), (3, 0), (0, 5), (7,), (64,), (13, 17), (3, 5, 7), (2, 3, 4, 5), (70, 90)]
SPARSITIES = (0.0, 0.3, 0.9, 1.0)
ANY = [name for name in ENCODINGS if name != "nm"]  # nm holds only tensors that follow its pattern


def sparse(shape, p, dtype="float32", seed=0):
    """Random bits, so that every NaN, −0.0 and subnormal number comes by, and zeros with probability p."""
    draw = np.random.default_rng(seed)
    kind = DTYPES[dtype]
    if dtype == "bool":
        words = draw.integers(0, 2, prod(shape), np.uint8)
    else:
        words = np.frombuffer(draw.bytes(prod(shape) * kind.itemsize), np.uint8).copy()
        words = words.view(f"i{kind.itemsize}")
    words[draw.random(prod(shape)) < p] = 0
    return torch.from_numpy(words).view(kind).reshape(shape)


def describe(tensor, name):
    return best_spec(tensor, (name,))


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(words_of(a), words_of(b))


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_comes_back_bit_for_bit(name, dtype):
    for shape, p in product(SHAPES, SPARSITIES):
        tensor = sparse(shape, p, dtype)
        encoded = encode(tensor, name)
        assert same_bits(decode(encoded), tensor), (shape, p)
        # the formula in bits, and the bytes: each part is filled up to a whole byte
        assert encoded.size == encodings.size(encoded.spec)
        assert 0 <= 8 * encoded.size - bits(encoded.spec) < 8 * len(encoded.parts)
        assert tuple(encoded.parts) == ENCODINGS[name].parts
        assert encoded.parts["values"].dtype == tensor.dtype


def test_nan_payloads_and_negative_zeros_are_kept():
    words = torch.tensor([0, -(2**31), 0x7FC00001, -1, 0, 1], dtype=torch.int32)
    tensor = words.view(torch.float32)  # 0, −0.0, a NaN with a payload, another, 0, a subnormal
    for name in ANY:
        encoded = encode(tensor, name)
        assert torch.equal(decode(encoded).view(torch.int32), words)
        if name not in ("dense", "run_length"):
            assert encoded.spec["nnz"] == 4


def test_every_dtype_that_safetensors_stores_is_encoded():
    stored = {str(kind).removeprefix("torch.") for kind in safetensors.torch._SIZE if kind is not None}
    assert stored <= set(DTYPES)


def test_a_conjugate_that_was_not_worked_out_yet_comes_back():
    tensor = torch.tensor([1 + 2j, 0, 3 - 1j])
    for lazy in (tensor.conj(), tensor.conj().imag):
        assert torch.equal(decode(encode(lazy, "bitmap")), lazy)


def test_transposed_and_sliced_tensors_are_read_as_they_look():
    tensor = sparse((30, 40), 0.5, "int64").T[::2]
    for name in ANY:
        assert same_bits(decode(encode(tensor, name)), tensor.contiguous())


def test_encoding_leaves_the_tensor_alone_and_shares_nothing():
    tensor = sparse((20, 20), 0.5, "int32")
    before = tensor.clone()
    for name in ANY:
        decode(encode(tensor, name)).fill_(7)
        assert torch.equal(tensor, before), name


# ------------------------------------------------------------------------------------------ formulas


@pytest.mark.parametrize("shape", [(64, 96), (5, 7), (1, 1000), (300,), (4, 6, 10)])
@pytest.mark.parametrize("p", SPARSITIES)
def test_the_formulas_by_hand(shape, p):
    tensor = sparse(shape, p, "float32", seed=3)
    size_, n = prod(shape), 32
    nnz = int(np.count_nonzero(words_of(tensor)))
    rows, columns = (shape[0], size_ // shape[0]) if len(shape) > 1 else (1, size_)
    found = {name: bits(describe(tensor, name)) for name in ANY}
    assert found["dense"] == size_ * n
    assert found["bitmap"] == nnz * n + size_
    assert found["coo"] == nnz * (n + ceil(log2(size_)))
    assert found["csr"] == nnz * (n + ceil(log2(columns))) + (rows + 1) * ceil(log2(nnz + 1))
    assert found["csc"] == nnz * (n + ceil(log2(rows))) + (columns + 1) * ceil(log2(nnz + 1))
    places = np.flatnonzero(words_of(tensor)).tolist()
    gaps = [b - a - 1 for a, b in pairwise([-1, *places])]
    spec = describe(tensor, "run_length")
    tokens = [nnz + sum(g // 2**r for g in gaps) for r in range(1, 17)]
    assert found["run_length"] == tokens[spec["r"] - 1] * (n + spec["r"])
    # the parameter is chosen by bytes, in which every part is filled up
    assert encodings.size(spec) == min(4 * t + ceil(t * r / 8) for r, t in enumerate(tokens, 1))
    spec = describe(tensor, "rice")
    unary = [nnz + sum(g // 2**k for g in gaps) for k in range(20)]
    assert found["rice"] == nnz * (n + spec["k"]) + unary[spec["k"]]
    best = min(4 * nnz + ceil(nnz * k / 8) + ceil(u / 8) for k, u in enumerate(unary))
    assert encodings.size(spec) == best


def test_run_length_tokens_by_hand():
    """Runs of 0, 3, 4 and 9 zeros with r = 2: a filler (3, 0) stands for four zeros; the end needs none."""
    tensor = torch.tensor([5] + [0] * 3 + [6] + [0] * 4 + [7] + [0] * 9 + [8] + [0] * 6, dtype=torch.int8)
    spec = Spec("run_length", "int8", (26,), {"tokens": 7, "r": 2})
    encoded = encode(tensor, spec)
    assert encoded.parts["values"].tolist() == [5, 6, 0, 7, 0, 0, 8]
    runs = Packed(encoded.parts["runs"].numpy(), 7, 2)[:].tolist()
    assert runs == [0, 3, 3, 0, 3, 3, 1]
    assert torch.equal(decode(encoded), tensor)
    assert bits(spec) == 7 * (8 + 2)


@pytest.mark.parametrize("r", [1, 2, 4, 8, 13])
def test_run_length_with_any_r_holds_any_run(r):
    for zeros in (0, 2**r - 1, 2**r, 2**r + 1, 3 * 2**r):
        tensor = torch.tensor([0] * zeros + [1, 2] + [0] * zeros, dtype=torch.int16)
        tokens = 2 + zeros // 2**r
        encoded = encode(tensor, Spec("run_length", "int16", (len(tensor),), {"tokens": tokens, "r": r}))
        assert torch.equal(decode(encoded), tensor), zeros


def test_run_length_expectation_of_independent_zeros():
    p, r, n = 0.9, 4, 32
    tensor = (torch.rand(400_000, generator=torch.Generator().manual_seed(0)) >= p).float()
    source = Source(tensor)
    tokens = source.nnz + source.overflow(r)
    expected = (1 - p) * len(tensor) * (n + r) / (1 - p ** (2**r))
    assert tokens * (n + r) == pytest.approx(expected, rel=0.01)


def test_csr_is_the_textbook_example_and_that_of_torch():
    matrix = torch.zeros(4, 6)
    for value, (i, j) in enumerate([(0, 0), (0, 1), (1, 1), (1, 3), (2, 2), (2, 3), (2, 4), (3, 5)], start=1):
        matrix[i, j] = 10 * value
    encoded = encode(matrix, "csr")
    columns = Packed(encoded.parts["columns"].numpy(), 8, 3)[:].tolist()
    rows = Packed(encoded.parts["rows"].numpy(), 5, 4)[:].tolist()
    assert encoded.parts["values"].tolist() == [10, 20, 30, 40, 50, 60, 70, 80]
    assert columns == [0, 1, 1, 3, 2, 3, 4, 5]
    assert rows == [0, 2, 4, 7, 8]
    for tensor, name, kind in (
        (sparse((31, 47), 0.8, "int32"), "csr", torch.Tensor.to_sparse_csr),
        (sparse((31, 47), 0.8, "int32"), "csc", torch.Tensor.to_sparse_csc),
    ):
        theirs, ours = kind(tensor), encode(tensor, name)
        along, across = (31, 47) if name == "csr" else (47, 31)
        where = theirs.crow_indices() if name == "csr" else theirs.ccol_indices()
        index = theirs.col_indices() if name == "csr" else theirs.row_indices()
        nnz = ours.spec["nnz"]
        begins = Packed(ours.parts["rows"].numpy(), along + 1, width(nnz + 1))[:]
        assert begins.tolist() == where.tolist()
        found = Packed(ours.parts["columns"].numpy(), nnz, width(across))[:]
        assert found.tolist() == index.tolist()
        assert torch.equal(ours.parts["values"], theirs.values())


@pytest.mark.parametrize("fewer", [False, True])
@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 2), (1, 4), (4, 8), (3, 5)])
def test_n_of_m_on_both_axes(n, m, fewer):
    for shape, across in product([(8, 40), (6, 43), (43, 6), (2, 3, 21), (22,)], (0, 1)):
        draw = torch.Generator().manual_seed(m)
        along = shape[0] if across else shape[-1]
        groups = -(-along // m)
        scores = torch.rand(prod(shape) // along, groups, m, generator=draw)
        kept = scores.argsort(-1).argsort(-1) < (n - fewer)
        kept = kept.reshape(-1, groups * m)[:, :along]
        kept = kept.T.reshape(shape) if across else kept.reshape(shape)
        tensor = torch.randn(shape, generator=draw).masked_fill(~kept, 0)
        spec = Spec("nm", "float32", shape, {"n": n, "m": m, "across": across})
        encoded = encode(tensor, spec)
        assert same_bits(decode(encoded), tensor)
        assert bits(spec) == prod(shape) // along * groups * n * (32 + ceil(log2(m)))
        assert encoded.size == encodings.size(spec)


def test_two_of_four_is_found_and_refused_where_it_does_not_hold():
    tensor = torch.tensor([[1.0, 2, 0, 0, 0, 3, 4, 0]] * 64)
    assert best_spec(tensor).to_dict() == {
        "encoding": "nm",
        "dtype": "float32",
        "shape": [64, 8],
        "n": 2,
        "m": 4,
        "across": 0,
    }
    assert bits(best_spec(tensor)) == 64 * 4 * (32 + 2)
    assert describe(tensor.T.contiguous(), "nm")["across"] == 1
    tensor[5, 2] = 9
    assert best_spec(tensor).encoding != "nm"
    with pytest.raises(FormatError):
        encode(tensor, Spec("nm", "float32", (64, 8), {"n": 2, "m": 4, "across": 0}))
    with pytest.raises(InvalidValueError):
        encode(tensor.half(), Spec("bitmap", "float32", (64, 8), {"nnz": 256}))
    with pytest.raises(FormatError):
        encode(tensor, Spec("bitmap", "float32", (64, 8), {"nnz": 2}))


# ------------------------------------------------------------------------------------------ the best of them


@pytest.mark.parametrize("p", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95])
def test_the_best_is_near_the_information_bound(p):
    draw = torch.Generator().manual_seed(1)
    tensor = torch.randn(512, 768, generator=draw)
    tensor.masked_fill_(torch.rand(512, 768, generator=draw) < p, 0)
    q = float((tensor != 0).double().mean())
    bound = tensor.numel() * (4 * q + (-q * log2(q) - (1 - q) * log2(1 - q)) / 8)
    assert encodings.bound(tensor) == pytest.approx(bound)
    best = encode(tensor)
    assert 0.999 * bound < best.size < 1.01 * bound
    fixed = encodings.size(describe(tensor, "run_length"))
    assert fixed < 1.05 * bound  # a fixed r does, if it is chosen by size


def test_the_best_is_the_smallest_of_all():
    for seed, p in enumerate((0.0, 0.02, 0.5, 0.8, 0.99, 1.0)):
        for dtype in ("float32", "bfloat16", "int8"):
            tensor = sparse((40, 60), p, dtype, seed)
            sizes = {name: encode(tensor, name).size for name in ANY}
            assert encode(tensor).size == min(sizes.values())
    assert best_spec(torch.ones(50, 50)).encoding == "dense"
    assert best_spec(torch.zeros(50, 50)).encoding != "dense"
    assert best_spec(sparse((40, 60), 0.9), among=("coo", "csr")).encoding == "csr"


def test_gaps_longer_than_the_histogram_and_the_chunk():
    tensor = torch.zeros(1 << 20, dtype=torch.int8)
    tensor[[0, 5, 70_000, 70_001, (1 << 18) - 1, 1 << 18, 900_000]] = 1
    for name in ANY:
        encoded = encode(tensor, name)
        assert torch.equal(decode(encoded), tensor), name
        assert encoded.size == encodings.size(encoded.spec)


def test_wrong_names_and_dtypes_are_refused():
    with pytest.raises(UnknownNameError) as error:
        encode(torch.zeros(3), "bitmop")
    assert (error.value.parameter, error.value.nearest) == ("encoding", "bitmap")
    with pytest.raises(UnsupportedError):
        encode(torch.zeros(3, dtype=torch.complex128))
    with pytest.raises(UnsupportedError):
        describe(torch.ones(8, 8), "nm")


# ------------------------------------------------------------------------------------------ packed fields


@given(some.integers(1, 40), some.lists(some.integers(0, 2**40 - 1), max_size=70), some.data())
def test_fields_of_any_width_come_back(bits_, numbers, data):
    values = np.array([n % 2**bits_ for n in numbers], np.int64)
    packed = pack(values, bits_)
    assert len(packed) == size(len(values), bits_) == ceil(len(values) * bits_ / 8)
    fields = Packed(packed, len(values), bits_)
    assert fields[:].tolist() == values.tolist()
    a = data.draw(some.integers(0, len(values)))
    b = data.draw(some.integers(a, len(values)))
    assert fields[a:b].tolist() == values[a:b].tolist()


@given(some.integers(1, 2**50))
def test_width_is_the_logarithm(n):
    assert 2 ** width(n) >= n > 2 ** width(n) // 2


# ------------------------------------------------------------------------------------------ damage


@settings(max_examples=60, deadline=None)
@given(some.sampled_from(ANY), some.data())
def test_damaged_parts_give_a_tensor_or_an_error(name, data):
    """Any byte of any index may be anything: a wrong tensor or an EspalierError, never another error."""
    shape = data.draw(some.sampled_from([(9,), (6, 11), (3, 4, 5), (40, 30)]))
    tensor = sparse(shape, data.draw(some.sampled_from([0.2, 0.7, 0.95])), "int16")
    encoded = encode(tensor, name)
    part = data.draw(some.sampled_from(sorted(encoded.parts)))
    damaged = encoded.parts[part].clone()
    if damaged.numel():
        at = data.draw(some.integers(0, damaged.numel() - 1))
        damaged[at] = data.draw(some.integers(0, 127))
    if data.draw(some.booleans()):
        damaged = damaged[: data.draw(some.integers(0, damaged.numel()))]
    try:
        out = decode(Encoded(encoded.spec, encoded.parts | {part: damaged}))
    except EspalierError:
        return
    assert out.shape == tensor.shape
    assert out.dtype == tensor.dtype


@settings(max_examples=150, deadline=None)
@given(some.sampled_from(ANY), some.data())
def test_counts_that_lie_are_refused(name, data):
    tensor = sparse((6, 11), 0.5, "int16")
    encoded = encode(tensor, name)
    if not encoded.spec.counts:
        return
    which = data.draw(some.sampled_from(sorted(encoded.spec.counts)))
    lie = data.draw(some.integers(0, 2**56).filter(lambda n: n != encoded.spec[which]))
    spec = Spec(name, "int16", (6, 11), {**encoded.spec.counts, which: lie})
    try:
        out = decode(Encoded(spec, encoded.parts))
    except EspalierError:
        return
    assert out.shape == tensor.shape  # a k of 3 for one of 2 may fit to the byte


def test_each_kind_of_damage_is_refused():
    tensor = torch.tensor([[0, 1, 0, 2], [3, 0, 0, 4]], dtype=torch.int8)

    def damaged(name, **parts):
        encoded = encode(tensor, name)
        changed = {k: torch.tensor(v, dtype=encoded.parts[k].dtype) for k, v in parts.items()}
        return Encoded(encoded.spec, encoded.parts | changed)

    for broken in (
        damaged("bitmap", mask=[255]),
        damaged("bitmap", mask=[0b1001]),
        damaged("bitmap", mask=[1, 2]),
        damaged("bitmap", values=[1, 2, 3]),
        damaged("coo", places=pack(np.array([1, 1, 4, 7]), 3).tolist()),
        damaged("coo", places=pack(np.array([3, 1, 4, 7]), 3).tolist()),
        damaged("csr", rows=pack(np.array([0, 3, 3]), 3).tolist()),
        damaged("csr", rows=pack(np.array([1, 2, 4]), 3).tolist()),
        damaged("csr", columns=pack(np.array([3, 1, 0, 3]), 2).tolist()),
        damaged("coo", places=[0x39, 0xFF]),
    ):
        with pytest.raises(FormatError):
            decode(broken)
    encoded = encode(torch.ones(9, dtype=torch.int8), "bitmap")
    mask = torch.tensor([0xFE, 3], dtype=torch.uint8)
    with pytest.raises(FormatError):
        decode(Encoded(encoded.spec, encoded.parts | {"mask": mask}))
    far = encode(torch.tensor([0, 0, 1, 0, 1], dtype=torch.int8), "coo")
    places = torch.from_numpy(pack(np.array([2, 7]), 3))
    with pytest.raises(FormatError):
        decode(Encoded(far.spec, far.parts | {"places": places}))
    far = torch.zeros(40, dtype=torch.int8)
    far[[3, 9]] = 1
    far = encode(far, Spec("rice", "int8", (40,), {"nnz": 2, "k": 0, "unary": 10}))
    high = torch.tensor([8, 0b00010000], dtype=torch.uint8)  # its second one is bit 12 of 10
    with pytest.raises(FormatError):
        decode(Encoded(far.spec, far.parts | {"high": high}))
    short = encode(tensor, "rice")
    with pytest.raises(FormatError):
        decode(Encoded(short.spec, {k: v for k, v in short.parts.items() if k != "low"}))


def test_n_of_m_places_stay_inside_the_row():
    """The last group of a row of five holds one element; a value at its fourth place would be lost."""
    for n, places in ((1, [0, 3]), (2, [0, 1, 0, 3]), (2, [0, 1, 1, 2])):
        for across, shape in ((0, (1, 5)), (1, (5, 1))):
            tensor = torch.zeros(shape)
            tensor.view(-1)[4] = 3.0
            encoded = encode(tensor, Spec("nm", "float32", shape, {"n": n, "m": 4, "across": across}))
            assert same_bits(decode(encoded), tensor)
            wrong = torch.from_numpy(pack(np.array(places), 2))
            with pytest.raises(FormatError):
                decode(Encoded(encoded.spec, encoded.parts | {"places": wrong}))
    value = torch.tensor([1.0, 0, 3.0, 4.0])  # places as they should be, the fourth outside the row
    with pytest.raises(FormatError):
        decode(Encoded(encoded.spec, encoded.parts | {"values": value}))


def test_a_gap_of_rice_cannot_wrap_around():
    """2^32 zero bits in front of a one: shifted by 32 they would be a gap of none."""
    high = np.zeros((1 << 29) + 1, np.uint8)  # untouched memory: it costs nothing
    high[-1] = 1
    low = Packed(np.zeros(4, np.uint8), 1, 32)
    with pytest.raises(FormatError):
        next(ENCODINGS["rice"].gaps(high, len(high) * 8, 32, low))


@settings(max_examples=60, deadline=None)
@given(some.sampled_from([(1, 5), (3, 7), (6, 9), (9, 2)]), some.integers(0, 1), some.data())
def test_no_value_of_n_of_m_is_lost_whatever_its_places(shape, across, data):
    """Any places: every value that is not zero is somewhere in the tensor, or an error is raised."""
    n, m = data.draw(some.sampled_from([(1, 4), (2, 4), (3, 5)]))
    spec = Spec("nm", "int8", shape, {"n": n, "m": m, "across": across})
    count, wide = encodings.parts(spec)["places"]
    places = data.draw(some.lists(some.integers(0, 2**wide - 1), min_size=count, max_size=count))
    values = data.draw(some.lists(some.integers(0, 2), min_size=count, max_size=count))
    packed = torch.from_numpy(pack(np.array(places), wide))
    parts = {"values": torch.tensor(values, dtype=torch.int8), "places": packed}
    try:
        out = decode(Encoded(spec, parts))
    except EspalierError:
        return
    assert int((out != 0).sum()) == sum(v != 0 for v in values)
