"""GatherBlockQuantized over codes, axes, blocks and zero points, against ONNX Runtime."""

import ml_dtypes
import numpy as np
import pytest
from onnx_single import Single, answers_of, assert_single

from trireme import Session
from trireme.devices.cpu.compile.program import REFERENCE
from trireme.support.errors import ConvertError

SEED = 20261123
ROWS = np.array([[1, 3, 0], [5, -1, 2]])


def packed(numbers, bits):
    """Codes of uint8: the low bits of a byte first, along the last axis."""
    if bits == 8:
        return numbers.astype(np.uint8)
    parts = numbers.reshape(*numbers.shape[:-1], -1, 8 // bits).astype(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(parts << shifts, axis=-1)


def case(shape, block, axis=1, gathered=0, kind="uint8", bits=4, zero=True, scale="float32"):
    rng = np.random.default_rng(SEED)
    blocks = tuple(-(-n // block) if i == axis % len(shape) else n for i, n in enumerate(shape))
    if zero and kind == "uint8":
        blocks = (*blocks[:-1], blocks[-1] + -blocks[-1] % (8 // bits))
    numbers, zeros = (rng.integers(0, 1 << bits, s) for s in (shape, blocks))
    if kind == "uint8":
        numbers, zeros = packed(numbers, bits), packed(zeros, bits) if zero else zeros
    else:
        low = 8 if kind == "int4" else 0
        numbers, zeros = ((a - low).astype(getattr(ml_dtypes, kind)) for a in (numbers, zeros))
    scales = rng.uniform(0.1, 1, blocks).astype(scale)
    attrs = {"bits": bits, "block_size": block, "gather_axis": gathered, "quantize_axis": axis}
    inputs = [numbers, ROWS, scales, *([zeros] if zero else [])]
    fixed = frozenset({0, 2, 3} & set(range(len(inputs))))
    return Single("GatherBlockQuantized", tuple(inputs), attrs, fixed)


CASES = {
    "4 bits": case((6, 64), 16),
    "4 bits, the zero point in the middle": case((6, 64), 16, zero=False),
    "8 bits": case((6, 64), 32, bits=8),
    "8 bits, the zero point in the middle": case((6, 64), 32, bits=8, zero=False),
    "uint4": case((6, 64), 16, kind="uint4"),
    "uint4 without a zero point": case((6, 64), 16, kind="uint4", zero=False),
    "int4": case((6, 64), 16, kind="int4"),
    "int4 without a zero point": case((6, 64), 16, kind="int4", zero=False),
    "a part of a block": case((6, 40), 16, zero=False),
    "three axes": case((6, 4, 32), 16, axis=2),
    "blocks along the rows": case((32, 8), 16, axis=0, gathered=1, kind="int4"),
    "columns are gathered": case((4, 64), 16, gathered=1, kind="int4", zero=False),
    "float16": case((6, 64), 16, scale="float16"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_agrees_with_onnx_runtime(name):
    assert_single(CASES[name])


@pytest.mark.parametrize("name", ["4 bits", "8 bits", "int4"])
def test_rows_stay_in_bytes_and_have_kernels(name):
    one = CASES[name]
    (right,) = answers_of(one.model(), one.feeds).values()
    with Session(one.model(), devices=["cpu"], threads=1) as session:
        (found,) = session.run(one.feeds).values()
        assert REFERENCE not in str(session.profile(one.feeds))
        table = max(
            (v for v in session.graph.values.values() if v.is_constant),
            key=lambda v: v.type.elements,
        )
    np.testing.assert_array_equal(found, right)
    assert table.type.dtype in ("uint8", "int8")


def test_codes_that_are_fed_are_refused():
    one = CASES["4 bits"]
    fed = Single(one.op, one.inputs, one.attrs, frozenset({2, 3}))
    with pytest.raises(ConvertError, match="that are not constant are not supported"):
        Session(fed.model())
