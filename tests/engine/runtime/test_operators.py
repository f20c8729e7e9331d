"""Eager tensors as ordinary Python: numpy says shape, dtype and elements of every expression."""

import operator

import numpy as np
import pytest

from trireme.ir.graph import Quant, TensorType
from trireme.runtime.eager import eager
from trireme.runtime.eager.operators import Operators
from trireme.support.errors import DeviceError, GraphError, PlacementError, ShapeError

SEED = 14
BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
DTYPES = ("bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64")


def draw(rng, dtype, shape=(3, 4)):
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(1, 6, shape).astype(dtype)
    return (rng.standard_normal(shape) * 3).astype(dtype)


def assert_same(found, want, label):
    want = np.asarray(want)
    assert found.dtype == want.dtype, f"{label}: {found.dtype}, numpy has {want.dtype}"
    assert found.shape == want.shape, f"{label}: {found.shape}, numpy has {want.shape}"
    exact = want.dtype.kind in "biu"
    tolerance = 0 if exact else 4 * float(np.finfo(want.dtype).eps)
    np.testing.assert_allclose(np.asarray(found), want, rtol=tolerance, atol=tolerance * 8)


def compare(sign, one, two):
    """Compare an expression with numpy's: its value, or that both refuse it."""
    label = f"{one!r} {sign} {two!r}"
    a, b = (eager.tensor(x) if isinstance(x, np.ndarray) else x for x in (one, two))
    with np.errstate(all="ignore"):
        try:
            want = BINARY[sign](one, two)
        except (TypeError, ValueError, OverflowError):
            with pytest.raises((GraphError, TypeError)):
                BINARY[sign](a, b)
            return
    assert_same(BINARY[sign](a, b), want, label)


@pytest.mark.parametrize("sign", BINARY)
def test_two_tensors(sign):
    rng = np.random.default_rng(SEED)
    shapes = ((3, 4), (4, 2)) if sign == "@" else ((3, 4), (4,))
    for dtype in DTYPES:
        if sign == "@" and dtype == "bool":
            continue  # numpy's product of truth values is no sum
        compare(sign, draw(rng, dtype, shapes[0]), draw(rng, dtype, shapes[1]))
    for one, two in (("int32", "float32"), ("float32", "int64"), ("bool", "float32")):
        compare(sign, draw(rng, one, shapes[0]), draw(rng, two, shapes[1]))
    for one, two in (("uint8", "int8"), ("bool", "int32"), ("float16", "float32")):
        compare(sign, draw(rng, one, shapes[0]), draw(rng, two, shapes[1]))


@pytest.mark.parametrize("sign", sorted(BINARY.keys() - {"@"}))
def test_python_numbers_take_the_dtype_of_the_tensor(sign):
    rng = np.random.default_rng(SEED)
    for dtype in DTYPES:
        if sign == "**" and dtype == "bool":
            continue  # numpy squares truth values by another rule than its power
        x = draw(rng, dtype)
        for number in (2, 2.5, True, np.float32(1.5), np.int64(3)):
            compare(sign, x, number)
            compare(sign, number, x)


def test_numbers_that_do_not_fit_are_refused():
    x = eager.tensor(np.zeros(3, np.uint8))
    with pytest.raises(GraphError, match="300 out of bounds for uint8"):
        x + 300
    with pytest.raises(GraphError, match="subtract is not defined for bool"):
        eager.tensor(np.ones(2, bool)) - eager.tensor(np.ones(2, bool))
    with pytest.raises(TypeError, match="unsupported operand"):
        x + "one"
    with pytest.raises(ShapeError, match="add"):
        x + np.zeros(2, np.uint8)


def test_an_array_on_the_left_makes_a_tensor():
    x = np.arange(3, dtype=np.float32)
    for made in (x + eager.tensor(x), np.float32(2) * eager.tensor(x), x @ eager.tensor(x)):
        assert isinstance(made, eager.Tensor)
    np.testing.assert_array_equal(np.exp(eager.tensor(x)), np.exp(x))


def test_functions_of_numpy_work_on_the_arrays():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = eager.tensor(x)
    assert_same(np.sum(y, axis=0), np.sum(x, axis=0), "np.sum")
    assert_same(np.mean(y, keepdims=True), np.mean(x, keepdims=True), "np.mean")
    assert_same(np.concatenate([y, x], axis=1), np.concatenate([x, x], axis=1), "np.concatenate")
    assert_same(np.where(y > 2, y, 0), np.where(x > 2, x, 0), "np.where")


UNARY = {
    "-x": operator.neg,
    "+x": operator.pos,
    "abs": abs,
    "~x": operator.invert,
    "T": lambda x: x.T,
    "sum": lambda x: x.sum(),
    "sum 0": lambda x: x.sum(axis=0),
    "sum kept": lambda x: x.sum(axis=(0, -1), keepdims=True),
    "sum of no axes": lambda x: x.sum(axis=()),
    "prod": lambda x: x.prod(1),
    "mean": lambda x: x.mean(axis=-1),
    "var": lambda x: x.var(),
    "var 1": lambda x: x.var(axis=1, ddof=1, keepdims=True),
    "std": lambda x: x.std(axis=0),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(axis=1, keepdims=True),
    "any": lambda x: (x > 2).any(axis=0),
    "all": lambda x: x.all(),
    "argmax": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(axis=1),
    "argmax kept": lambda x: x.argmax(keepdims=True),
    "cumsum": lambda x: x.cumsum(axis=1),
    "cumsum of all": lambda x: x.cumsum(),
    "reshape": lambda x: x.reshape(2, -1),
    "reshape to a tuple": lambda x: x.reshape((4, 3)),
    "ravel": lambda x: x.ravel(),
    "flatten": lambda x: x.flatten(),
    "transpose": lambda x: x.reshape(3, 2, 2).transpose(2, 0, 1),
    "swapaxes": lambda x: x.reshape(3, 2, 2).swapaxes(0, -1),
    "squeeze": lambda x: x.reshape(3, 1, 4, 1).squeeze(),
    "squeeze one": lambda x: x.reshape(3, 1, 4, 1).squeeze(axis=1),
    "nothing to squeeze": lambda x: x.squeeze(),
    "take": lambda x: x.take([2, 0], axis=1),
    "take of all": lambda x: x.take([7, 0, 7]),
    "astype": lambda x: x.astype(np.float32).astype("int64"),
    "astype bool": lambda x: x.astype(bool),
    "astype by names of numpy": lambda x: x.astype("f4").astype("float"),
    "clip": lambda x: x.clip(1, 3),
    "clip below": lambda x: x.clip(min=2),
    "divmod": lambda x: divmod(x, 3)[1] + divmod(x, 3)[0],
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float32"])
def test_methods(name, dtype):
    x = draw(np.random.default_rng(SEED), dtype)
    try:
        want = UNARY[name](x)
    except (TypeError, ValueError):
        with pytest.raises(GraphError):
            UNARY[name](eager.tensor(x))
        return
    assert_same(UNARY[name](eager.tensor(x)), want, f"{name} of {dtype}")


def test_round_is_half_to_even():
    x = np.array([0.5, 1.5, -2.5, 2.4], np.float32)
    assert_same(eager.tensor(x).round(), x.round(), "round")


KEYS = [
    (1,), (-1,), (0, 2), (slice(1, 3),), (slice(None), 1), (..., 0), (slice(None, None, -1),),
    (slice(-2, None), slice(None, 2)), (None, 1), (slice(None), None, 2), (..., None),
    (slice(5, 1),), (slice(4, 0, -2), ..., slice(None, None, 2)), (slice(-99, 99),),
    (slice(None, -99, -1),), (slice(99, None, -3),), (), (...,), (1, ..., None, -1),
    ([0, 2],), ([[0, 1], [2, 2]],), (slice(None), [1, 0, -1]), ([0, 1], [1, 2]),
    ([0, 1], slice(None), [1, 2]), (slice(None), [0, 1], [1, 2]), (slice(1, 3), 0, [1, 2]),
    (0, slice(None), [1, 2]), ([0, 1], None, [1, 2]), (None, [0, 1], [1, 2]),
    (slice(None), None, [0, 2], 1), ([[0], [1]], [1, 2]), ([0, 1], [1, 2], [0, 3]),
    (None, slice(None), [0, 1], None, slice(1)), ([],), (np.int64(2),), (np.uint8([1, 0]),),
    ([True, False, True, False, True],), (slice(None), [True, False, True]),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_indexing(key):
    x = np.arange(60, dtype=np.float32).reshape(5, 3, 4)
    assert_same(eager.tensor(x)[key], x[key], f"x[{key}]")
    if len(key) == 1:
        assert_same(eager.tensor(x)[key[0]], x[key[0]], f"x[{key[0]}]")
    given = tuple(eager.tensor(np.array(k)) if isinstance(k, list) and k else k for k in key)
    assert_same(eager.tensor(x)[given], x[key], f"x[{given}]")


def test_random_keys():
    rng = np.random.default_rng(SEED)
    x = np.arange(120, dtype=np.int32).reshape(2, 3, 4, 5)

    def part(dim):
        kind = rng.integers(0, 4)
        if kind == 0:
            return int(rng.integers(-dim, dim))
        if kind == 1:
            ends = [None if rng.integers(0, 3) == 0 else int(rng.integers(-7, 8)) for _ in "ab"]
            return slice(*ends, int(rng.choice([-2, -1, 1, 2])))
        return None if kind == 2 else rng.integers(-dim, dim, rng.choice([2, 1]))

    for case in range(60):
        key, used = [], 0
        for _ in range(int(rng.integers(1, 6))):
            one = part(x.shape[min(used, 3)])
            if one is None or used < 4:
                key.append(one)
                used += one is not None
        key = tuple(key)
        try:
            want = x[key]
        except IndexError:
            continue
        assert_same(eager.tensor(x)[key], want, f"seed {SEED}, case {case}: x[{key}]")


def test_masks():
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((3, 4)).astype(np.float32)
    t = eager.tensor(x)
    assert_same(t[t > 0], x[x > 0], "x[x > 0]")
    assert_same(t[x[:, 0] > 0], x[x[:, 0] > 0], "rows")
    assert_same(t[1:, x[0] > 0], x[1:, x[0] > 0], "columns")


def test_tensors_as_ends_of_slices():
    t, n = eager.tensor(np.arange(6)), eager.tensor(np.array(2))
    assert t[n:].tolist() == [2, 3, 4, 5] and t[: n + 1].tolist() == [0, 1, 2]
    assert [10, 20, 30][n] == 30


@pytest.mark.parametrize(
    "key, sentence",
    [
        ((5,), "index 5 is outside axis 0 of float32"),
        ((0, 0, 0), "3 indices for float32"),
        ((..., ...), "2 times"),
        ((slice(None, None, 0),), "step of a slice is 0"),
        (("a",), "'a' is no index"),
        ((1.5,), "1.5 is no index"),
        (([0.5],), "an index of float64"),
        ((True,), "True is no index of an axis"),
        ((np.ones((3, 4, 1), bool),), "a mask of shape"),
        (([0, 1], [0, 1, 2]), "do not broadcast"),
    ],
    ids=str,
)
def test_bad_keys_are_refused(key, sentence):
    with pytest.raises(ShapeError, match=sentence):
        eager.tensor(np.zeros((3, 4), np.float32))[key]


def test_one_element_is_a_number():
    x = eager.tensor(np.array([[3]], np.int32))
    assert bool(x) and int(x) == 3 and float(x) == 3.0 and range(9)[x] == 3 and complex(x) == 3
    assert f"{x / 2:.2f}" == "1.50" and x.item() == 3
    with pytest.raises(GraphError, match="has 2 elements"):
        bool(eager.tensor([1.0, 2.0]) > 1)
    with pytest.raises(GraphError, match="is no index"):
        range(9)[eager.tensor(1.0)]


def test_len_iteration_and_hash():
    x = eager.tensor(np.arange(6, dtype=np.float32).reshape(3, 2))
    assert len(x) == 3 and [row.tolist() for row in x] == [[0, 1], [2, 3], [4, 5]]
    first, second, third = x
    assert isinstance(third, eager.Tensor) and len({first, second, first}) == 2
    with pytest.raises(GraphError, match="has no axes"):
        len(x.sum())
    assert (x.ndim, x.size, x.shape, x.dtype) == (2, 6, (3, 2), np.float32)


def test_one_compiled_call_serves_every_row():
    context = eager.Eager()
    x = context("relu", np.arange(20, dtype=np.float32).reshape(10, 2))
    rows = [row + i for i, row in enumerate(x)]
    assert rows[7].tolist() == [21, 22] and context.compiled == 3
    context.close()


def test_results_stay_on_the_device_of_their_operands():
    x = eager.relu(np.ones((2, 2), np.float32), device="host")
    assert (x + 1).device == "host" and (2 * x).sum().device == "host"
    assert eager.tanh(x).device == "host" and eager.tanh(x, device="cpu").device == "cpu"
    assert (eager.tensor([1.0]) + 1).device == "cpu"
    y = x.to("cpu")
    assert (y * y).device == "cpu"
    with pytest.raises(PlacementError, match="add: the inputs are on host and cpu"):
        x + y
    with pytest.raises(DeviceError, match="unknown device"):
        x.to("tpu")


def test_a_device_says_which_operator_it_lacks():
    x = eager.relu(np.ones(3, np.float16), device="npu")
    assert (x + x).device == "npu"
    with pytest.raises(PlacementError, match="npu cannot run cast"):
        x.astype(np.float64)


def test_dlpack_both_ways():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    there = np.from_dlpack(eager.tensor(x) * 2)
    np.testing.assert_array_equal(there, x * 2)
    back = eager.from_dlpack(x)
    assert back.data.ctypes.data == x.ctypes.data and back.type == TensorType((2, 3), "float32")
    with pytest.raises(GraphError, match="a list cannot be shared"):
        eager.from_dlpack([1.0])
    with pytest.raises(GraphError, match="DLPack cannot hold bfloat16"):
        np.from_dlpack(eager.tensor(x).astype("bfloat16"))


def test_torch_shares_tensors():
    torch = pytest.importorskip("torch")
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    y = eager.from_dlpack(x) + 1
    assert torch.equal(torch.from_dlpack(y), x + 1)


def test_quantised_tensors_are_refused():
    x = eager.tensor(np.arange(4, dtype=np.int8), Quant((0.5,), (0,)))
    for use in (lambda: x + 1, lambda: 1 + x, lambda: x[0], lambda: x.sum(), lambda: -x):
        with pytest.raises(GraphError, match="which is quantised"):
            use()


def test_bfloat16_keeps_its_dtype_beside_numbers():
    x = eager.tensor(np.arange(3, dtype=np.float32)).astype("bfloat16")
    assert [(x + n).type.dtype for n in (1, 1.5, True)] == ["bfloat16"] * 3
    assert (x + np.float32(1)).dtype == np.float32


def test_a_newton_iteration_reads_ordinarily():
    a = eager.tensor(np.array([2.0, 9.0], np.float32))
    root, steps = a, 0
    while abs(root * root - a).max() > 1e-6 and steps < 20:
        root, steps = (root + a / root) / 2, steps + 1
    np.testing.assert_allclose(root, np.sqrt([2, 9]), rtol=1e-6)


class Recorded(Operators):
    """A tensor without elements: what a trace sees."""

    def __init__(self, type, log):
        self.type, self.log = type, log

    def _apply(self, op, *inputs, **attrs):
        self.log.append(op)
        return Recorded(self.type, self.log)


def test_operators_know_no_elements():
    log = []
    x = Recorded(TensorType(("n", 4), "float32"), log)
    (x * 2 + 1)[:, 1:3].mean(axis=-1)
    assert log == ["mul", "add", "slice", "reduce_mean"]
    for use in (bool, int, float, len, list, np.asarray):
        with pytest.raises(GraphError, match="before a run"):
            use(x)
