"""What a program gives in plain Python, and whether a graph gave the same."""

import numpy as np


def flat(value):
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in flat(part)]
    return [np.asarray(value)]


def in_python(program, case):
    with np.errstate(all="ignore"):
        return program(*[np.copy(one)[()] for one in case])


def expect_same(got, wanted, case, close=1e-12):
    """Equal shapes and dtypes; numbers within the rounding of their dtype."""
    got, wanted = flat(got), flat(wanted)
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        why = str(case)
        assert one.shape == other.shape, why
        assert one.dtype == other.dtype, why
        within = max(close, 1e-5 if one.dtype == np.float32 else 0)
        np.testing.assert_allclose(one, other, rtol=within, atol=within, err_msg=why)
