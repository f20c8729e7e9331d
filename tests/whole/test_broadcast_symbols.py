"""A symbol may be 1 in one run and more in the next: ops that broadcast follow, in one Session.

The graphs of the fuzzer seldom have an axis of 1 there, and a program for every shape is made at
sizes above 1.
"""

import itertools

import numpy as np
import pytest

from trireme import Session
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

SIZES = (3, 5, 4)
FLOATS = ("add", "sub", "mul", "div", "max", "min", "less", "equal", "where", "matmul", "expand")
WHOLE = ("add", "mul", "max", "equal", "where", "expand")
REFERENCE = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "less": np.less,
    "equal": np.equal,
    "where": lambda a, b: np.where(a > b, a, b),
    "matmul": lambda a, b: a @ np.swapaxes(b, -1, -2),
    "expand": lambda a, b: np.broadcast_to(a, b.shape),
}


def program(op, dtype, known):
    """The op of a [p,q,r] and b [s,t,u]; axes in `known` of b are numbers."""
    b = GraphBuilder(op)
    x = b.input("a", TensorType(("p", "q", "r"), dtype))
    shape = tuple(n if i in known else "stu"[i] for i, n in enumerate(SIZES))
    y = b.input("b", TensorType(shape, dtype))
    if op == "where":
        made = b.add("where", b.add("greater", x, y), x, y)
    elif op == "matmul":
        made = b.add("matmul", x, b.add("transpose", y, perm=(0, 2, 1)))
    elif op == "expand":
        made = b.add("expand", x, b.add("shape", y))
    else:
        made = b.add(op, x, y)
    return b.finish(made)


def sizes(op, known):
    """The shapes of a and b that go together, an axis of 1 in either at each place."""
    for kinds in itertools.product(("both", "a", "b"), repeat=3):
        a = tuple(1 if kind == "a" else n for kind, n in zip(kinds, SIZES, strict=True))
        b = tuple(1 if kind == "b" else n for kind, n in zip(kinds, SIZES, strict=True))
        if op == "matmul" and (kinds[2] != "both" or kinds[1] != "both"):
            continue
        if op == "expand" and "b" in kinds:
            continue
        if not any(b[axis] == 1 for axis in known):
            yield a, b


@pytest.mark.parametrize("known", [(), (2,), (0, 1)], ids=str)
@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, "float32") for op in FLOATS] + [(op, "int64") for op in WHOLE],
    ids=lambda one: one,
)
def test_an_axis_of_one_is_broadcast(op, dtype, known):
    rng = np.random.default_rng(20261124)
    with Session(program(op, dtype, known), devices=["cpu"], threads=1) as session:
        for shape, other in sizes(op, known):
            a, b = (rng.integers(-9, 10, s).astype(dtype) for s in (shape, other))
            b[b == 0] = 1
            (found,) = session.run({"a": a, "b": b}).values()
            np.testing.assert_array_equal(found, REFERENCE[op](a, b), err_msg=f"{shape} {other}")


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
@pytest.mark.parametrize("open_axes", [(2,), (0, 2), (0, 1, 2)], ids=str)
def test_an_expand_to_constant_sizes(dtype, open_axes):
    b = GraphBuilder("expand")
    shape = tuple("pqr"[i] if i in open_axes else n for i, n in enumerate(SIZES))
    x = b.input("a", TensorType(shape, dtype))
    target = b.constant("sizes", np.array(SIZES, np.int64))
    with Session(b.finish(b.add("expand", x, target)), devices=["cpu"]) as session:
        for ones in itertools.product((False, True), repeat=len(open_axes)):
            axes = {axis for axis, one in zip(open_axes, ones, strict=True) if one}
            given = tuple(1 if axis in axes else n for axis, n in enumerate(SIZES))
            a = np.arange(np.prod(given)).reshape(given).astype(dtype)
            (found,) = session.run({"a": a}).values()
            np.testing.assert_array_equal(found, np.broadcast_to(a, SIZES), err_msg=str(given))


@pytest.mark.parametrize("empty", ["m", "k", "n"])
def test_a_product_without_elements(empty):
    b = GraphBuilder("product")
    x = b.input("a", TensorType(("m", "k"), "float32"))
    y = b.input("b", TensorType(("k", "n"), "float32"))
    with Session(b.finish(b.add("matmul", x, y)), devices=["cpu"]) as session:
        for sizes in ({"m": 3, "k": 4, "n": 5}, {"m": 3, "k": 4, "n": 5} | {empty: 0}):
            a = np.ones((sizes["m"], sizes["k"]), np.float32)
            other = np.ones((sizes["k"], sizes["n"]), np.float32)
            (found,) = session.run({"a": a, "b": other}).values()
            np.testing.assert_array_equal(found, a @ other)


def test_the_shape_of_a_branch_follows_the_symbols():
    onnx = pytest.importorskip("onnx")
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (bool c, float[n, 8] x) => (float[n, 8] y, float[n, 8] z) {
            y = If (c) <
                then_branch = t () => (float[n, 8] a) { a = Neg (x) },
                else_branch = e () => (float[n, 8] b) { b = Abs (x) }>
            z = Exp (y)
        }"""
    )
    with Session(model.SerializeToString(), devices=["cpu"]) as session:
        for n, chosen in ((2, True), (5, False), (1, True)):
            x = np.linspace(-1, 1, 8 * n, dtype=np.float32).reshape(n, 8)
            made = session.run({"c": np.array(chosen), "x": x})
            np.testing.assert_array_equal(made["y"], -x if chosen else np.abs(x))
            np.testing.assert_allclose(made["z"], np.exp(made["y"]), rtol=1e-6)
