"""gather_nd of every dtype on OpenCL, beside numpy's own indexing by arrays."""

import numpy as np
import opencl
import pytest

import trireme
from trireme import eager

SEED = 67
DTYPES = ("bool", "float32", "float16", "int8", "uint8", "int16", "int32", "int64", "uint32")
FORMS = (
    ((3, 4, 5), (2, 2), 0),
    ((3, 4, 5), (6, 1), 0),
    ((3, 4, 5), (2, 3, 3), 0),
    ((2, 4, 5), (2, 3, 1), 1),
    ((2, 3, 4, 5), (2, 3, 2, 2), 2),
    ((2, 3, 4), (2, 1), 1),
)
"""The shapes of x and of the indices, and how many axes they share."""


def picked(x, indices, batch):
    """The rows of each pair of the shared axes, indexed by numpy."""
    pairs = [
        one[tuple(np.moveaxis(places, -1, 0))]
        for one, places in zip(
            x.reshape(-1, *x.shape[batch:]),
            indices.reshape(-1, *indices.shape[batch:]),
            strict=True,
        )
    ]
    rest = x.shape[batch + indices.shape[-1] :]
    return np.stack(pairs).reshape(*indices.shape[:-1], *rest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_nd_gives_what_numpy_gives(dtype):
    opencl.need_opencl()
    rng = np.random.default_rng(SEED)
    for number, (shape, form, batch) in enumerate(FORMS, DTYPES.index(dtype)):
        x = (rng.normal(size=shape) * 9).astype(dtype)
        sizes = shape[batch : batch + form[-1]]
        columns = [rng.integers(-size, size, form[:-1]) for size in sizes]
        indices = np.stack(columns, -1).astype((np.int32, np.int64)[number % 2])
        got = eager.gather_nd(x, indices, batch_dims=batch, device="opencl").numpy()
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, picked(x, indices, batch), f"seed {SEED} {shape}")


def test_an_index_outside_its_axis_is_named():
    opencl.need_opencl()
    x = np.ones((3, 4), bool)
    for pair, said in (([1, 4], "4 is outside the 4 "), ([-4, 0], "-4 is outside the 3 ")):
        with pytest.raises(trireme.RunError, match=f"index {said}elements of the axis"):
            eager.gather_nd(x, np.array([[0, 1], pair]), device="opencl")
