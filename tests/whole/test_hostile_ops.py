"""Whatever an op's attributes, shapes and small operands are: an answer or a typed error, soon.

The cases (hostile_ops.py) run in child processes of bounded memory and CPU time.
"""

import sys
import time

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.op import Attr
from trireme.runtime.session.session import Session
from trireme.support.errors import GraphError, PlacementError

pytest.importorskip("resource")
import hostile_ops  # noqa: E402
from lab.stress import bounded  # noqa: E402

SEED, COUNT = 20261122, 40
WRAPS = "conv_transpose sample 7: input 2 (constant) first 2147483648"
"""A bias at the end of int32: sums of integers wrap, those of the reference do not."""


def bad_ends(devices, count):
    """The cases that end in anything but an answer or a typed error."""
    print("seed", SEED)
    command = [hostile_ops.__file__, "+".join(devices), str(SEED), str(count)]
    stall_s = bounded.STALL_S if count > 0 else 7200
    ends = bounded.outcomes(command, stall_s=stall_s)
    cases = {number: str(case) for number, case in hostile_ops.chosen(SEED, count)}
    assert set(ends) == set(cases), "a case has no end"
    assert sum(end.kind == "ran" for end in ends.values()) > len(ends) // 5
    return [
        f"{cases[number]}: {end.kind} {end.text}"
        for number, end in ends.items()
        if end.is_bad and cases[number] != WRAPS
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory and CPU time of Linux")
@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "npu"), ("cpu", "opencl")], ids="+".join)
class TestCases:
    def test_some(self, devices):
        if "opencl" in devices:
            pytest.importorskip("pyopencl")
        assert not bad_ends(devices, COUNT)

    @pytest.mark.slow
    def test_all(self, devices):
        """On OpenCL one case of each op and kind: the driver compiles each for a quarter second."""
        count = hostile_ops.EACH_KIND if "opencl" in devices else hostile_ops.ALL
        assert not bad_ends(devices, count)


@pytest.mark.parametrize(
    "op, shape, attrs, sentence",
    [
        ("lrn", (2, 3), {"size": -(2**63)}, "size=-9223372036854775808, expected 1 or more"),
        ("split", (4,), {"num_outputs": 0}, "num_outputs=0, expected 1 or more"),
        ("celu", (3,), {"alpha": 0.0}, "alpha is 0"),
        ("elu", (3,), {"alpha": float("nan")}, "alpha=nan, expected a finite number"),
        ("leaky_relu", (3,), {"alpha": 1e300}, "alpha=1e[+]300, expected a finite number"),
        ("softmax", (3,), {"beta": -1.0}, "beta=-1.0, expected 0 or more"),
    ],
)
def test_attributes_have_bounds(op, shape, attrs, sentence):
    builder = GraphBuilder("hostile")
    x = builder.input("x", TensorType(shape, "float32"))
    with pytest.raises(GraphError, match=sentence):
        builder.add(op, x, **attrs)


@pytest.mark.parametrize("counts", [(0, 2**40), (3, 1), (-1, 2)])
def test_grams_lie_within_their_pool(counts):
    """The reference counted to 2^40."""
    builder = GraphBuilder("grams")
    x = builder.input("x", TensorType((6,), "int64"))
    attrs = hostile_ops.GRAMS | {"ngram_counts": counts}
    with pytest.raises(GraphError, match="ngram_counts are .* expected to rise from 0 to 4"):
        builder.add("tf_idf_vectorizer", x, **attrs)


def test_each_of_several_numbers_is_within_bounds():
    attr = Attr("ints", least=1)
    assert attr.check("op", "strides", [1, 2]) == (1, 2)
    with pytest.raises(GraphError, match="expected 1 or more"):
        attr.check("op", "strides", [1, 0])


def test_indices_that_name_no_axis_are_refused():
    builder = GraphBuilder("hostile")
    x = builder.input("x", TensorType((3, 4), "float32"))
    with pytest.raises(GraphError, match="last dimension of indices is 0"):
        builder.add("gather_nd", x, builder.input("i", TensorType((2, 0), "int64")))


@pytest.mark.parametrize("alpha", [-1.0, -0.25, 0.5])
def test_celu_of_any_sign(alpha):
    builder = GraphBuilder("celu")
    x = builder.input("x", TensorType((101,), "float32"))
    graph = builder.finish(builder.add("celu", x, alpha=alpha, names=["y"]))
    data = np.linspace(-3, 3, 101, dtype=np.float32)
    with Session(graph) as session:
        found = session.run({"x": data})["y"]
    wide = data.astype(np.float64)
    wanted = np.maximum(wide, 0) + np.minimum(0, alpha * np.expm1(wide / alpha))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_an_operand_larger_than_memory_is_refused_before_it_is_tiled(device):
    """The NPU wrote a command stream for 457 GiB to say how long it takes."""
    builder = GraphBuilder("large")
    quant = Quant((0.05,), (3,))
    x = builder.input("x", TensorType((2, 6, 2**31, 19), "int8", quant))
    window = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    y = builder.add("average_pool", x, **window, layout="NHWC", quants=[quant])
    start = time.process_time()
    with pytest.raises(PlacementError, match="takes 489,626,271,744 bytes"):
        Session(builder.finish(y), devices=[device])
    assert time.process_time() - start < 5
