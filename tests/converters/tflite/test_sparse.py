"""Constants that are stored sparse: LiteRT's DENSIFY has the same array; damage is an error."""

import re

import numpy as np
import pytest
from litert import litert_run
from tflite_builder import Op, SparseForm, T, model

from trireme.converters.tflite import sparse
from trireme.converters.tflite.walk import convert
from trireme.ir.interpreter import run_reference
from trireme.support.errors import ModelFileError

SEED = 20261126
RNG = np.random.default_rng(SEED)


def stored_sparse(dense, order, csr, blocks=(), index="uint8"):
    """Return the tensor of an array: the levels in `csr` list what is not 0.

    blocks: (axis, size) of each axis within blocks
    """
    rank, sizes = dense.ndim, dict(blocks)
    split = [(n // sizes.get(a, 1), sizes.get(a, 1)) for a, n in enumerate(dense.shape)]
    parts = dense.reshape([n for pair in split for n in pair])
    inner = [2 * axis + 1 for axis, _ in blocks]
    whole = [2 * axis for axis in range(rank)]
    alone = [a for a in range(parts.ndim) if a not in whole + inner]
    turned = parts.transpose([*([*whole, *inner][axis] for axis in order), *alone])
    turned = turned.reshape(turned.shape[: len(order)])
    nodes, levels = [()], []
    for depth, size in enumerate(turned.shape):
        if depth not in csr:
            levels.append(size)
            nodes = [(*node, i) for node in nodes for i in range(size)]
            continue
        kept = [[i for i in range(size) if turned[(*node, i)].any()] for node in nodes]
        levels.append((np.cumsum([0, *map(len, kept)]).tolist(), [i for row in kept for i in row]))
        nodes = [(*node, i) for node, row in zip(nodes, kept, strict=True) for i in row]
    data = np.array([turned[node] for node in nodes], dense.dtype)
    stored = SparseForm(list(order), levels, [axis for axis, _ in blocks], index)
    return T(dense.shape, str(dense.dtype), data=data, stored=stored)


def some(shape, dtype, keep=0.3):
    values = RNG.integers(-100, 100, shape) * (RNG.random(shape) < keep)
    return values.astype(dtype)


def densified(tensor):
    """A model that adds an input to the tensor, made dense."""
    tensors = [tensor, T(tensor.shape, tensor.dtype), T(tensor.shape), T(tensor.shape)]
    operators = [Op("DENSIFY", [0], [1]), Op("CAST", [1], [2]), Op("ADD", [2, 3], [4])]
    return model([*tensors, T(tensor.shape)], operators, [3], [4])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize(
    "shape, order, csr, blocks",
    [
        ((6, 9), (0, 1), (1,), ()),
        ((6, 9), (1, 0), (1,), ()),
        ((6, 9), (0, 1), (0, 1), ()),
        ((8, 12), (0, 1, 2, 3), (1,), ((0, 4), (1, 2))),
        ((8, 12), (0, 1, 2), (1,), ((1, 4),)),
        ((4, 1, 2, 8), (0, 1, 2, 3), (3,), ()),
    ],
)
def test_agrees_with_litert(dtype, shape, order, csr, blocks):
    if dtype == "float16" and blocks:
        pytest.skip("LiteRT's DENSIFY of float16 knows no blocks")
    dense = some(shape, dtype)
    index = RNG.choice(["uint8", "uint16", "int32"])
    data = densified(stored_sparse(dense, order, csr, blocks, str(index)))
    feeds = {"t3": np.zeros(shape, np.float32)}
    ours = run_reference(convert(data), feeds)["t4"]
    np.testing.assert_array_equal(ours, dense, err_msg=f"seed {SEED}")
    theirs = litert_run(data, feeds, reference=False)["t4"]
    np.testing.assert_array_equal(ours, theirs, err_msg=f"seed {SEED}")


def with_levels(levels, order=(0, 1), values=3, shape=(2, 3), blocked=()):
    stored = SparseForm(list(order), levels, list(blocked))
    return T(shape, data=np.ones(values, np.float32), stored=stored)


@pytest.mark.parametrize(
    "tensor",
    [
        with_levels([2, ([0, 1, 4], [0, 1, 2])]),
        with_levels([2, ([0, 2, 1], [0, 1, 2])]),
        with_levels([2, ([1, 2, 3], [0, 1, 2])]),
        with_levels([2, ([0, 3], [0, 1, 2])]),
        with_levels([2, ([0, 1, 3], [0, 1, 9])]),
        with_levels([2, ([], [])], values=1),
        with_levels([5, ([0, 1, 1, 1, 2, 3], [0, 1, 2])]),
        with_levels([2, 3]),
        with_levels([-2, -3]),
        with_levels([2**31 - 1, 2**31 - 1]),
        with_levels([2, ([0, 1, 3], [0, 1, 2])], order=(0, 0)),
        with_levels([2, ([0, 1, 3], [0, 1, 2])], order=(0,)),
        with_levels([2, ([0, 1, 3], [0, 1, 2])], blocked=(0,)),
        with_levels([2, ([0, 1, 3], [0, 1, 2]), 1], order=(0, 1, 2), blocked=(7,)),
    ],
)
def test_parts_that_do_not_fit(tensor):
    with pytest.raises(ModelFileError, match=re.escape("SubGraph.tensors[0].sparsity")):
        convert(densified(tensor))


def test_a_small_file_makes_no_large_array(monkeypatch):
    monkeypatch.setattr("trireme.converters.tflite.file.MOST_DENSE", 5)
    assert sparse.MOST_DENSE > 5
    with pytest.raises(ModelFileError, match="over 5 elements in all"):
        convert(densified(with_levels([2, ([0, 1, 3], [0, 1, 2])])))
