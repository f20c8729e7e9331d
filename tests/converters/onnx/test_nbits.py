"""MatMulNBits over bits, block sizes, zero points, levels and shapes, against ONNX Runtime."""

from dataclasses import replace

import numpy as np
import pytest
from onnx_single import Single, answers_of, assert_same, assert_single

from trireme import Session
from trireme.converters.onnx import convert
from trireme.ir.interpreter import run_reference
from trireme.support.errors import ConvertError

SEED = 20261125
RNG = np.random.default_rng(SEED)


def nbits(shape, columns, block, bits=4, zeros="", bias=False, level=0, **attrs):
    """A node with packed weights; `zeros` is "packed", "floats" or nothing."""
    depth = shape[-1]
    blocks = -(-depth // block)
    codes = RNG.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    scales = RNG.uniform(0.01, 0.1, columns * blocks).astype(np.float32)
    packed = RNG.integers(0, 256, columns * -(-blocks * bits // 8)).astype(np.uint8)
    points = {"packed": packed, "floats": RNG.uniform(3, 9, columns * blocks).astype(np.float32)}
    row = RNG.standard_normal(columns).astype(np.float32) if bias else None
    inputs = [RNG.standard_normal(shape).astype(np.float32), codes, scales, points.get(zeros)]
    inputs += [None, row] if bias else []
    sizes = {"N": columns, "K": depth, "bits": bits, "block_size": block, "accuracy_level": level}
    fixed = frozenset(n for n in range(1, len(inputs)) if inputs[n] is not None)
    return Single("MatMulNBits", tuple(inputs), sizes | attrs, fixed)


CASES = {
    f"{bits} bits, blocks of {block}, {zeros or 'no'} zero points, level {level}": nbits(
        (3, depth), columns, block, bits, zeros, level=level
    )
    for bits in (4, 8)
    for block, depth, columns in ((16, 40, 33), (32, 96, 17), (64, 72, 20), (128, 300, 70))
    for zeros in ("", "packed")
    for level in (0, 4)
} | {
    "2 bits": nbits((3, 70), 33, 32, 2),
    "2 bits, packed": nbits((3, 70), 33, 32, 2, "packed"),
    "2 bits, level 4": nbits((3, 70), 33, 32, 2, level=4),
    "2 bits, small blocks, level 4": nbits((3, 70), 33, 16, 2, level=4),
    "2 bits, large blocks, level 4": nbits((3, 270), 33, 256, 2, level=4),
    "zero points are floats": nbits((3, 70), 33, 32, zeros="floats"),
    "bias": nbits((3, 70), 33, 32, bias=True),
    "bias, level 4": nbits((3, 70), 33, 32, zeros="packed", bias=True, level=4),
    "three axes": nbits((2, 5, 64), 33, 32),
    "one row, level 4": nbits((1, 128), 200, 32, level=4),
    "one row": nbits((1, 128), 200, 32, zeros="packed"),
    "many rows, level 4": nbits((37, 64), 70, 32, level=4),
    "levels 1 to 3 are exact": nbits((3, 64), 33, 32, level=1),
    "one block": nbits((3, 16), 5, 16),
}


@pytest.mark.parametrize("name", CASES)
def test_matmul_nbits(name):
    assert_single(CASES[name])


@pytest.mark.parametrize("level", [0, 4])
def test_a_session_holds_weights_of_4_bits(level):
    """The kernel's copy of the weights takes what the file takes, beside padding of columns."""
    case = nbits((2, 256), 192, 32, zeros="packed", level=level)
    (right,) = answers_of(case.model(), case.feeds).values()
    with Session(case.model(), devices=["cpu"], threads=1) as session:
        (found,) = session.run(case.feeds).values()
        kernels = session.profile(case.feeds)
    assert_same("y", found, right, 1e-5)
    assert "matmul_nbits4" in str(kernels)


def test_blocks_in_order_may_be_spelt_out():
    case = nbits((3, 64), 33, 32)
    order = np.arange(64, dtype=np.int32) // 32
    spelt = replace(case, inputs=(*case.inputs[:3], None, order), constants=frozenset({1, 2, 4}))
    (right,) = answers_of(case.model(), case.feeds).values()
    (found,) = run_reference(convert(spelt.model()), spelt.feeds).values()
    assert_same("y", found, right, 1e-5)


def test_forms_that_are_not_supported_are_refused():
    case = nbits((3, 64), 33, 32)
    shuffled = RNG.permutation(64).astype(np.int32) // 32
    moved = replace(case, inputs=(*case.inputs[:3], None, shuffled), constants=frozenset({1, 2, 4}))
    with pytest.raises(ConvertError, match="g_idx"):
        convert(moved.model())
    with pytest.raises(ConvertError, match="weight_prepacked"):
        convert(nbits((3, 64), 33, 32, weight_prepacked=1).model())
    zeros = nbits((3, 64), 33, 32, zeros="packed")
    with pytest.raises(ConvertError, match="not constant"):
        convert(replace(zeros, constants=frozenset({1, 2})).model())
