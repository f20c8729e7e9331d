"""What inference lets through, the reference can compute, in the type that inference says.

Inputs of every op's samples are changed: an axis gone, added, empty, longer or shorter, and every
dtype there is. Inference refuses the change with a sentence, or the reference runs.
"""

import numpy as np
import onnx.defs
import pytest
from onnx import TensorProto, helper
from op_samples import sample_graph
from retyped import retyped, samples_of, with_inputs

from trireme.ir.builder import GraphBuilder
from trireme.ir.dtype_rules import Like
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import interpret
from trireme.ir.op import all_ops, get_op
from trireme.support.dtypes import ANY, COMPLEX, TEXT, dtype_name
from trireme.support.errors import GraphError, RunError, ShapeError, TriremeError


def reshaped(sample):
    """Yield (what, sample) for each input with one axis changed."""
    for position, array in enumerate(sample.inputs):
        for what, other in () if array is None else changed(array):
            yield f"input {position} {what}", with_inputs(sample, {position: other})


def changed(array):
    """Yield the array with one axis changed, and what was changed."""
    yield "axis before", array[None]
    yield "axis after", array[..., None]
    for axis in range(array.ndim):
        size = array.shape[axis]
        yield f"axis {axis} empty", np.take(array, [], axis)
        if size:
            yield f"axis {axis} gone", np.take(array, 0, axis)
            yield f"axis {axis} longer", np.concatenate([array, np.take(array, [0], axis)], axis)
            yield f"axis {axis} shorter", np.take(array, range(size - 1), axis)


def contradictions(op, changes):
    """Return what inference lets through and the reference refuses or gives another type."""
    found = []
    for sample in samples_of(op):
        for what, other in changes(sample):
            try:
                graph, feeds = sample_graph(op, other)
            except TriremeError:
                continue
            try:
                results = interpret(graph, feeds)
            except TriremeError as error:
                of_the_data = isinstance(error.__cause__, RunError)
                no_such_form = sample.quants and isinstance(error, GraphError)
                if not of_the_data and not no_such_form:
                    found.append(f"{what}: {error}")
                continue
            for value in graph.outputs:
                made = graph.type(value)
                if made.is_static and results[value].shape != made.dims:
                    found.append(f"{what}: {results[value].shape}, {made}")
    return found


@pytest.mark.filterwarnings("ignore")  # numpy's, on means of nothing and imaginary parts
@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
@pytest.mark.parametrize("changes", [reshaped, retyped], ids=["shapes", "dtypes"])
def test_inference_refuses_what_the_reference_refuses(op, changes):
    found = contradictions(op, changes)
    assert not found, "\n".join(found[:5])


STORED_ONLY = {
    "col2im": TEXT,
    "grid_sample": TEXT | COMPLEX,
    "resize": TEXT | COMPLEX,
    "trilu": TEXT,
}
"""Dtypes that ONNX lists for an op's first input, and that have no meaning here: there is no sum of
strings and no string for zero, and ONNX Runtime has no kernel for them either."""


def taken(op, position):
    """The dtypes that an input may have beside some dtypes of the others."""
    rule = op.dtypes[min(position, len(op.dtypes) - 1)]
    if isinstance(rule, Like):
        return taken(op, op.input_names.index(rule.input))
    return rule


def onnx_dtypes(formal):
    """The dtypes that ONNX lists for an input and trireme knows."""
    numbers = {f"tensor({name.lower()})": i for name, i in TensorProto.DataType.items()}
    known = set()
    for one in formal.types & set(numbers):
        try:
            known.add(dtype_name(helper.tensor_dtype_to_np_dtype(numbers[one])))
        except (GraphError, KeyError):
            continue
    return known


def test_floats_that_are_left_out_are_what_onnx_lists():
    """To the last bit: they are float32 numbers, as those that a file holds."""
    schemas = {s.name.lower(): s for s in onnx.defs.get_all_schemas() if not s.domain}
    wrong, compared = [], 0
    for op in all_ops():
        schema = schemas.get(op.name.replace("_", ""))
        for name, listed in (schema.attributes if schema else {}).items():
            if listed.default_value.type == onnx.AttributeProto.FLOAT and name in op.attrs:
                compared += 1
                if op.attrs[name].default != listed.default_value.f:
                    wrong.append(f"{op.name} {name}: {op.attrs[name].default!r}")
    assert not wrong and compared > 20, (wrong, compared)


def test_inputs_take_the_dtypes_that_onnx_lists():
    schemas = {s.name.lower(): s for s in onnx.defs.get_all_schemas() if not s.domain}
    pairs = [(op, schemas.get(op.name.replace("_", ""))) for op in all_ops()]
    missing, compared = [], 0
    for op, schema in pairs:
        for position, formal in enumerate(schema.inputs[: len(op.dtypes)] if schema else ()):
            allowed = STORED_ONLY.get(op.name, frozenset()) if position == 0 else frozenset()
            wanted = onnx_dtypes(formal)
            compared += len(wanted)
            refused = wanted - taken(op, position) - allowed
            if refused:
                missing.append(f"{op.name} {formal.name}: {', '.join(sorted(refused))}")
    assert compared > 2000
    assert not missing, "\n".join(missing)


QUANT = Quant((0.5,), (0,))
F32, Q8 = TensorType((2, 3), "float32"), TensorType((2, 3), "int8", QUANT)
I32 = TensorType((2, 3), "int32")
BIAS, FLOAT_BIAS = TensorType((2,), "int32"), TensorType((2,), "float32")
SENTENCES = [
    ("exp", [TensorType((2,), "string")], "x is string, expected a float"),
    ("add", [F32, I32], "b is int32, expected float32 as a"),
    ("max", [F32, F32, I32], "xs is int32, expected float32 as x"),
    ("gather", [F32, F32], "indices is float32, expected int32 or int64"),
    ("where", [F32, F32, F32], "condition is float32, expected bool"),
    (
        "fully_connected",
        [I32, TensorType((4, 3), "int8", QUANT)],
        "x is int32, expected a float beside a quantised w",
    ),
    (
        "clip",
        [Q8, TensorType((), "float16")],
        "min is float16, expected float32 beside a quantised x",
    ),
    ("resize", [TensorType((2,), "string")], "x is string, expected a real number or bool"),
]


@pytest.mark.parametrize(("op", "types", "sentence"), SENTENCES)
def test_a_wrong_dtype_is_a_sentence(op, types, sentence):
    builder = GraphBuilder("wrong")
    inputs = [builder.input(f"i{i}", type) for i, type in enumerate(types)]
    with pytest.raises(ShapeError, match=sentence):
        builder.add_node(op, inputs, {})


@pytest.mark.parametrize("types", [[Q8, Q8, BIAS], [F32, Q8], [F32, Q8, FLOAT_BIAS]])
def test_weights_may_be_quantised_where_activations_are_not(types):
    builder = GraphBuilder("mixed")
    inputs = [builder.input(f"i{i}", type) for i, type in enumerate(types)]
    made = builder.add_node("fully_connected", inputs, {}, quants=[types[0].quant])
    assert builder.type(made[0]).shape == (2, 2)


def test_bits_are_never_read_as_strings():
    """A string is a pointer in memory: reading integers as one would follow them."""
    builder = GraphBuilder("bits")
    whole, text = (builder.input(d, TensorType((2,), d)) for d in ("int64", "string"))
    for value, to in ((whole, "string"), (text, "int64")):
        with pytest.raises(ShapeError, match="string"):
            builder.add("bit_cast", value, to=to)


def test_every_op_says_what_its_inputs_take():
    for op in all_ops():
        assert len(op.dtypes) == len(op.input_names), op.name
        assert all(rule <= ANY for rule in op.dtypes if not isinstance(rule, Like)), op.name
    assert get_op("conv").dtypes[1] == Like("x", beside=get_op("exp").dtypes[0])
