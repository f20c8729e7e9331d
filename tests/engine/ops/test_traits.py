"""A trait says what the reference does: the samples of every op prove it, and its absence."""

import operator
import typing

import numpy as np
import pytest
from op_samples import SEED

from trireme.ir.dim_values import evaluator
from trireme.ir.graph import UNKNOWN, TensorType, Value
from trireme.ir.op import Axes, Call, all_ops, get_op
from trireme.ops.activation import edge_values
from trireme.support.errors import TriremeError

NAME = operator.attrgetter("name")
OPS = {op.name: op for op in all_ops() if not op.effect and not op.has_body}
BY_TYPE = {"quantize", "dequantize"}
"""Ops whose reference refuses values without a quantised type."""
NOT_DATA = {"cast_like"}
"""Ops of which another input than the first is a type and no data."""


def samples_of(op):
    """The samples of an op on values that are not quantised."""
    rng = np.random.default_rng(SEED)
    return [s for s in op.samples(rng) if not s.quants and not s.out_quants]


def run(op, inputs, attrs):
    """The outputs of the reference as a tuple; None if it refuses the inputs."""
    try:
        with np.errstate(all="ignore"):
            made = op.reference(*inputs, **op.bind(attrs))
    except (TriremeError, ValueError, IndexError, TypeError):
        return None
    return tuple(map(np.asarray, made)) if isinstance(made, tuple) else (np.asarray(made),)


def same(a, b, rtol=0.0):
    """Whether arrays have the same shape, dtype and elements, NaN being equal to NaN."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if a.dtype.kind not in "fc":
        return np.array_equal(a, b)
    return np.allclose(a, b, rtol=rtol, atol=0, equal_nan=True)


def element_by_element(op, sample):
    """Whether one output element depends on the elements at its place of broadcast inputs."""
    given = [None if x is None else np.asarray(x) for x in sample.inputs]
    outputs = run(op, given, sample.attrs)
    shapes = [x.shape for x in given if x is not None]
    if outputs is None or len(outputs) != 1:
        return False
    try:
        wide = np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    if outputs[0].shape != wide:
        return False
    for axis, size in enumerate(wide):
        for place in sorted({0, size // 2, size - 1} if size else ()):
            cut = [_cut(x, axis - len(wide), place) for x in given]
            part = run(op, cut, sample.attrs)
            wanted = np.take(outputs[0], [place], axis)
            if part is None or not same(part[0], wanted, op.rtol):
                return False
    return True


def _cut(x, axis, place):
    """The element at a place along an axis counted from the end; all where x is broadcast."""
    if x is None or x.ndim < -axis or x.shape[axis] == 1:
        return x
    return np.take(x, [place], axis)


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.name not in BY_TYPE], ids=NAME)
def test_elementwise(op):
    samples = samples_of(op)
    if not samples or op.name in NOT_DATA:
        assert not op.elementwise
        return
    found = all(element_by_element(op, sample) for sample in samples)
    assert found == op.elementwise


def rearranged(op, sample):
    """Whether every element of every output is one of input 0, whatever the elements are."""
    first = sample.inputs[0]
    if first is None or first.size < 2 or first.dtype == object:
        return None
    tags = (np.arange(first.size) - first.size / 2 + 0.3).reshape(first.shape)
    found = [run(op, [x, *sample.inputs[1:]], sample.attrs) for x in (tags, -tags)]
    if None in found:
        return False
    return all(np.isin(y, tags).all() and same(y, -other) for y, other in zip(*found, strict=True))


OTHERS_THAT_REARRANGE = {
    "complex_real",  # the samples here are real
    "copy",  # its place is the point of it
    "image_decoder",  # numbers in order are no picture
    "pad",  # in the modes that repeat elements
    "unique",  # and sorts them
}


@pytest.mark.parametrize("op", OPS.values(), ids=NAME)
def test_rearranges(op):
    found = [rearranged(op, sample) for sample in samples_of(op)]
    if op.rearranges:
        assert op.moves and True in found and False not in found
        return
    if op.name not in OTHERS_THAT_REARRANGE and True in found:
        assert False in found, "every sample says that it rearranges"


@pytest.mark.parametrize("op", OPS.values(), ids=NAME)
def test_alias(op):
    def keeps_bytes(sample):
        first, outputs = sample.inputs[0], run(op, sample.inputs, sample.attrs)
        if first is None or outputs is None or first.size < 2:
            return None
        return len(outputs) == 1 and outputs[0].tobytes() == first.tobytes()

    found = [keeps_bytes(sample) for sample in samples_of(op)]
    if op.alias:
        assert True in found and False not in found
    elif True in found:
        assert False in found or op.name == "copy", "every sample says that it is an alias"


OF_MANY = {"sum", "mean"}
"""Sums of more than two floats depend on the order; of two they do not."""


@pytest.mark.parametrize("op", OPS.values(), ids=NAME)
def test_commutes(op):
    if not op.elementwise or len(op.input_names) != 2:
        assert not op.commutes
        return
    pairs = [s for s in samples_of(op) if len(s.inputs) == 2]
    found = [
        same(run(op, s.inputs, s.attrs)[0], run(op, s.inputs[::-1], s.attrs)[0]) for s in pairs
    ]
    assert all(found) == (op.commutes or op.name in OF_MANY)


@pytest.mark.parametrize("op", OPS.values(), ids=NAME)
def test_neutral(op):
    if op.neutral is None:
        return
    is_bool = next(iter(samples_of(op))).inputs[0].dtype == bool
    numbers = (edge_values(), np.arange(-5, 6, dtype=np.int32))
    for x in (np.array([True, False, True]),) if is_bool else numbers:
        for shape in ((), x.shape):
            (y,) = run(op, [x, np.full(shape, op.neutral, x.dtype)], {})
            assert same(y, x)


@pytest.mark.parametrize("op", OPS.values(), ids=NAME)
def test_clamp(op):
    if op.clamp is not None:
        x = np.concatenate([edge_values(), np.linspace(-9, 9, 37, dtype=np.float32)])
        low, high = op.clamp
        assert same(run(op, [x], {})[0], np.clip(x, low, high))


def works_along(op, sample):
    """The axes that a sample's node names, None where all are meant or there are none."""
    x, attrs = sample.inputs[0], op.bind(sample.attrs)
    rank = x.ndim
    if op.axes.named in ("axis", "axis and after"):
        axis = attrs["axis"] % rank
        return set(range(axis, rank)) if op.axes.named != "axis" else {axis}
    if op.axes.named == "axes":
        return {axis % rank for axis in attrs["axes"]}
    if len(sample.inputs) < 2 or sample.inputs[1] is None:
        return None
    if op.axes.named == "input":
        return {int(axis) % rank for axis in np.ravel(sample.inputs[1])}
    numbers = np.ravel(sample.inputs[1])
    return {i for i, n in enumerate(numbers) if n != 1} if numbers.size == rank else None


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.axes], ids=NAME)
def test_axes(op):
    """Along other axes the op treats all elements alike: a part of them gives a part of y."""
    proven = 0
    for sample in samples_of(op):
        x = sample.inputs[0]
        named = works_along(op, sample) if x.ndim else None
        outputs = run(op, sample.inputs, sample.attrs)
        if named is None or not all(y.ndim == x.ndim for y in outputs):
            continue
        for axis in set(range(x.ndim)) - named:
            joined = sample.inputs if op.axes.does == "joins" else sample.inputs[:1]
            rest = sample.inputs[len(joined) :]
            for place in range(x.shape[axis]):
                cut = [np.take(part, [place], axis) for part in joined]
                parts = run(op, [*cut, *rest], sample.attrs)
                for y, part in zip(outputs, parts, strict=True):
                    assert same(part, np.take(y, [place], axis), op.rtol)
                    proven += 1
    assert proven


def test_layouts():
    """An op has inputs with a layout if it has the attribute; input 0 is one of them."""
    for op in all_ops():
        attr = op.attrs.get("layout")
        has_layout = attr is not None and "NCHW" in attr.choices
        assert bool(op.layout_inputs) == has_layout, op.name
        assert not has_layout or op.layout_inputs[0] == 0
        assert all(i < len(op.input_names) for i in op.layout_inputs)


def test_integer_forms():
    """An op with an integer form means something on stored integers."""
    for op in all_ops():
        assert not op.integer_form or op.quantized is not None, op.name
        assert op.integer_form != "table" or op.arity[0] == 1
    assert get_op("pow").quantized and not get_op("pow").integer_form  # goes through floats


def test_the_main_input_has_the_dtype_of_the_output():
    """Where another input than the first decides, the output has its dtype."""
    for op in all_ops():
        assert op.main_input < len(op.input_names)
    where = get_op("where")
    for sample in samples_of(where):
        (y,) = run(where, sample.inputs, sample.attrs)
        assert y.dtype == sample.inputs[where.main_input].dtype != sample.inputs[0].dtype


def test_axes_are_of_known_kinds():
    hints = typing.get_type_hints(Axes)
    for op in all_ops():
        for field, hint in hints.items():
            assert op.axes is None or getattr(op.axes, field) in typing.get_args(hint)


def test_the_most_of_what_only_a_run_tells():
    """No dimension that inference leaves open is above the trait, and some reach it."""
    found = set()
    for op in all_ops():
        for sample in samples_of(op) if op.most else ():
            given = [None if x is None else np.asarray(x) for x in sample.inputs]
            values = [
                x if x is None else Value(i, "x", TensorType(x.shape, str(x.dtype)))
                for i, x in enumerate(given)
            ]
            attrs = op.bind(sample.attrs)
            open_types = op.infer(*values, **attrs)
            most = op.most(Call(tuple(values), open_types, attrs))
            for type, made in zip(open_types, run(op, given, sample.attrs), strict=False):
                for dim, size in zip(type.shape, made.shape, strict=True):
                    if dim == UNKNOWN:
                        assert size <= most, (op.name, sample.note)
                        found.add(op.name)
    assert found == {op.name for op in all_ops() if op.most}


WINDOWS = [op for op in OPS.values() if op.windows]


def window_attrs(op, rng, layout):
    """Random windows over two axes, as the op has them."""
    two = lambda low, high: tuple(rng.integers(low, high, 2).tolist())  # noqa: E731
    attrs = {"strides": two(1, 4), "dilations": two(1, 3), "pads": (*two(0, 3), *two(0, 3))}
    attrs |= {"kernel": two(1, 5), "ceil_mode": int(rng.integers(2)), "layout": layout}
    return {name: value for name, value in attrs.items() if name in op.attrs}


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("op", WINDOWS, ids=NAME)
def test_windows_that_do_not_fit_are_all_that_is_refused(op, layout):
    print("seed", SEED)
    rng, refused = np.random.default_rng(SEED), 0
    for _ in range(60):
        attrs = op.bind(window_attrs(op, rng, layout))
        weights = Value(1, "w", TensorType((4, *rng.integers(1, 4, 2).tolist(), 4), "float32"))
        if layout == "NCHW":
            height, width = weights.type.shape[1:3]
            weights = Value(1, "w", TensorType((4, 4, height, width), "float32"))
        others = [weights] if op.name == "conv" else []

        def types(*space, attrs=attrs, others=others):
            shape = (1, *space, 4) if layout == "NHWC" else (1, 4, *space)
            return op.infer(Value(0, "x", TensorType(shape, "float32")), *others, **attrs)

        expressions = types("h", "w")[0].shape
        numbers = evaluator(expressions, ("h", "w"))
        for space in rng.integers(0, 12, (12, 2)).tolist():
            try:
                made = types(*space)[0].shape
            except TriremeError:
                made, refused = None, refused + 1
            wanted = numbers(*space)
            assert made == (wanted if min(wanted) >= 1 else None), (attrs, space)
    assert refused


def test_the_ops_with_windows():
    assert {op.name for op in WINDOWS} == {"conv", "max_pool", "average_pool", "lp_pool"}
