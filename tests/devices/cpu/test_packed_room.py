"""The packed weights of a program lie in one array, for which the system can make large pages."""

import numpy as np
import pytest

from trireme.backend.registry import open_device
from trireme.devices.cpu.codegen.aligned_memory import ALIGNMENT, PackedRoom
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

KINDS = [((3, 700), np.float32), ((5,), np.int8), ((1 << 20,), np.float32), ((0, 4), np.int32)]


def base_of(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_arrays_are_moved_whole_and_aligned():
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-100, 100, shape).astype(dtype) for shape, dtype in KINDS]
    room = PackedRoom([array.nbytes for array in arrays])
    moved = [room.moved(array) for array in arrays]
    for array, one in zip(arrays, moved, strict=True):
        assert one.dtype == array.dtype and one.shape == array.shape
        assert np.array_equal(one, array) and one.ctypes.data % ALIGNMENT == 0
    assert len({id(base_of(one)) for one in moved}) == 1


def test_few_weights_stay_where_they_are():
    small = np.zeros(16, np.float32)
    assert PackedRoom([small.nbytes]).moved(small).nbytes == small.nbytes


@pytest.mark.parametrize("rows", [4, "n"])
def test_the_weights_of_a_program_lie_in_one_array(rows):
    b = GraphBuilder("products")
    x = b.input("x", TensorType((rows, 512), "float32"))
    rng = np.random.default_rng(2)
    for k in range(6):
        w = b.constant(f"w{k}", rng.standard_normal((512, 512)).astype(np.float32))
        x = b.add("matmul", x, w)
    device = open_device("cpu", threads=1)
    graph = b.finish(x)
    (made,) = (device.compile if rows == 4 else device.compile_polymorphic)([graph])
    large = [one for one in made._program.constants.values() if one.nbytes >= 512 * 512]
    assert len(large) >= 6 and len({id(base_of(one)) for one in large}) == 1
