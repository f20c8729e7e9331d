"""Bad programs, and the sentence that each gets: a typed error with the node or the line at fault.

One row is one program that converts but cannot run, or cannot convert. The errors of conversion of
single ops, damaged files and hostile sizes have tests of their own.
"""

import logging
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import trireme
from trireme import ExecutionOptions, Session
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.support.errors import (
    CompileError,
    ConvertError,
    GraphError,
    PlacementError,
    RunError,
    ShapeError,
)

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.ones(2, np.float32)
FACTOR = np.float32(3)


def info(name, dtype=FLOAT, shape=(2,)):
    return helper.make_tensor_value_info(name, dtype, None if shape is None else list(shape))


def op(kind, inputs, outputs, **attrs):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attrs)


def graph(nodes, inputs, outputs, **constants):
    kept = [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()]
    return helper.make_graph(nodes, "g", inputs, outputs, kept)


def model(nodes, inputs, outputs, **constants):
    whole = graph(nodes, inputs, outputs, **constants)
    domains = [helper.make_opsetid("", 18)]
    return helper.make_model(whole, opset_imports=domains, ir_version=9).SerializeToString()


def body(*nodes, made=FLOAT, **constants):
    """A body with a turn, a condition and a carried value v of [2], which becomes w."""
    inputs = [info("turn", INT64, ()), info("go", BOOL, ()), info("v")]
    return graph(list(nodes), inputs, [info("going", BOOL, ()), info("w", made)], **constants)


def repeat(inside, trips=False):
    """A Loop named `again` over x, for n turns or until its condition is false."""
    inputs = ["n" if trips else "", "", "x"]
    node = helper.make_node("Loop", inputs, ["y"], name="again", body=inside)
    fed = [info("n", INT64, ()), info("x")] if trips else [info("x")]
    return model([node], fed, [info("y")])


def same_condition():
    return repeat(body(op("Identity", "go", "going"), op("Neg", "v", "w")))


def nearly_endless():
    """A loop that ends when a sum that never changes is below 0."""
    return repeat(
        body(
            op("ReduceSum", "v", "sum", keepdims=0),
            op("Greater", "sum zero", "going"),
            op("Mul", "v one", "w"),
            zero=np.float32(0),
            one=np.ones(2, np.float32),
        )
    )


def run(source, feeds, **options):
    how = {key: options.pop(key) for key in ("timeout_s", "schedule") if key in options}
    with Session(source, execution_options=ExecutionOptions(**how), **options) as session:
        return session.run(feeds)


def branches(then, other):
    """An If named `choose` on c, whose branches cast or cut x."""
    node = helper.make_node("If", ["c"], ["y"], name="choose", then_branch=then, else_branch=other)
    return model([node], [info("c", BOOL, ()), info("x")], [info("y", shape=None)])


def cast_to(dtype):
    return graph([op("Cast", "x", "made", to=dtype)], [], [info("made", dtype, None)])


def relu():
    return model([op("Relu", "x", "y")], [info("x", shape=("n", 4))], [info("y", shape=("n", 4))])


def plus(first, second):
    inputs = [info("a", shape=(first, 4)), info("b", shape=(second, 4))]
    return model([op("Add", "a b", "y", name="plus")], inputs, [info("y", shape=(None, 4))])


def fed_sizes():
    inputs = [info("x"), info("sizes", INT64, (2,))]
    return model(
        [op("Reshape", "x sizes", "y", name="cut")], inputs, [info("y", shape=(None,) * 2)]
    )


def found_places():
    """A reshape of the places of nonzero elements to two."""
    nodes = [op("NonZero", "x", "places"), op("Reshape", "places two", "y", name="cut")]
    return model(nodes, [info("x", shape=(4,))], [info("y", INT64)], two=np.array([2]))


def cache():
    nodes = [op("Concat", "past x", "present", axis=0, name="grow")]
    fed = [info("past", shape=("p", 2)), info("x", shape=("n", 2))]
    return model(nodes, fed, [info("present", shape=("q", 2))])


def python_op(function):
    b = GraphBuilder("g")
    x = b.input("x", TensorType((2,), "float32"))
    return b.finish(b.add_node("python", [x], function.attrs())[0])


@trireme.python_op(inputs=["float32"], outputs=["float32"])
def longer(x):
    return np.concatenate([x, x])


@trireme.python_op(inputs=["float32"], outputs=["float32"])
def unlucky(x):
    raise ValueError("no luck")


def scaled(x):
    return x * FACTOR


def after_a_change():
    global FACTOR  # noqa: PLW0603 - the program at fault changes it
    captured = trireme.capture(scaled, np.float32(2))
    FACTOR = np.float32(4)
    try:
        return captured(np.float32(2))
    finally:
        FACTOR = np.float32(3)


def forever(x):
    while True:
        x = x + 1
    return x


def halved(n):
    while n != 1:
        n = n // 2
    return n


def two_types(x):
    y = np.float32(0)
    if x > 0:
        y = np.int64(1)
    return y


def picked(x, i):
    return x[i]


def captured(function, *examples):
    return trireme.capture(function, *examples, fallback=False)


def pinned():
    b = GraphBuilder("g")
    x = b.input("x", TensorType((2,), "float32"))
    with trireme.device("npu"):
        y = b.add("unique", x)
    return b.finish(y)


def set_to(value):
    with Session(cache(), states={"past": "present"}, shapes={"past": ("p<=3", 2)}) as session:
        session.run({"x": np.ones((1, 2), np.float32)})
        session.set_state({"past": value})


def grown(times):
    with Session(cache(), states={"past": "present"}, shapes={"past": ("p<=3", 2)}) as session:
        for _ in range(times):
            session.run({"x": np.ones((1, 2), np.float32)})


def row(turns):
    return np.ones((turns, 4), np.float32)


PROGRAMS = {
    "a loop without end": (
        lambda: run(same_condition(), {"x": X}),
        CompileError,
        r"loop #0 \(onnx:again\) has no end: .* its condition stays true",
    ),
    "a loop that takes too long": (
        lambda: run(nearly_endless(), {"x": X}, timeout_s=0.1),
        RunError,
        r"loop #\d \(onnx:again\) did not end within 0\.1 s: [\d,]+ turns are done",
    ),
    "a loop that takes too long, as dataflow": (
        lambda: run(nearly_endless(), {"x": X}, timeout_s=0.1, schedule="dynamic"),
        RunError,
        r"onnx:again did not end within 0\.1 s: [\d,]+ turns are done",
    ),
    "a captured loop without end": (
        lambda: captured(forever, np.float32(1)),
        ConvertError,
        r"test_bad_programs\.py:\d+: `while True:`: the loop has no end",
    ),
    "a captured loop that takes too long": (
        lambda: run(captured(halved, np.int64(8)).graph(), {"n": np.int64(0)}, timeout_s=0.1),
        RunError,
        r"loop #\d \(test_bad_programs\.py:\d+\) did not end within 0\.1 s",
    ),
    "a symbol out of bounds": (
        lambda: run(relu(), {"x": row(9)}, shapes={"x": ("n<=8", 4)}),
        RunError,
        r"symbol n is 9, expected 0\.\.8(.|\n)*x \[9, 4\]",
    ),
    "a symbol of two sizes": (
        lambda: run(plus("n", "n"), {"a": row(3), "b": row(2)}),
        RunError,
        r"input 'b' float32\[n,4\]: .* symbol n is bound to 3 and to 2",
    ),
    "sizes that do not go together": (
        lambda: run(plus("n", "k"), {"a": row(3), "b": row(2)}),
        RunError,
        r"add #0 \(onnx:plus\): shapes \[3,4\] and \[2,4\] do not broadcast",
    ),
    "a feed of another rank": (
        lambda: run(relu(), {"x": X}),
        RunError,
        r"input 'x' is float32\[2\], expected float32\[n,4\]",
    ),
    "branches of unequal dtypes": (
        lambda: run(branches(cast_to(FLOAT), cast_to(INT64)), {"c": np.array(True), "x": X}),
        ConvertError,
        r"if \(onnx:choose\): output 0 is float32\[2\] or int64\[2\]: not of one dtype",
    ),
    "a carried value of another dtype": (
        lambda: repeat_cast(),
        ConvertError,
        r"loop \(onnx:again\): carried value 0 is float32\[2\] or int64\[2\]",
    ),
    "captured branches of unequal dtypes": (
        lambda: captured(two_types, np.float32(1)),
        ConvertError,
        r"test_bad_programs\.py:\d+: `return y`: y is float32\[\] .* and int64\[\] on another|"
        r"test_bad_programs\.py:\d+: .* y is int64\[\] on one path and float32\[\] on another",
    ),
    "a size that a run contradicts": (
        lambda: run(found_places(), {"x": np.ones(4, np.float32)}),
        RunError,
        r"reshape #\d \(onnx:cut\): 4 elements do not reshape to \(2,\)",
    ),
    "fed sizes that contradict the elements": (
        lambda: run(fed_sizes(), {"x": X, "sizes": np.array([3, 2])}),
        RunError,
        r"reshape #\d \(onnx:cut\): 2 elements do not reshape to \(3, 2\)",
    ),
    "a Python operator that contradicts its shape": (
        lambda: run(python_op(longer), {"x": X}),
        RunError,
        r"python #0: longer returned float32\[4\] as output 0, declared float32\[2\]",
    ),
    "a Python operator that raises": (
        lambda: run(python_op(unlucky), {"x": X}),
        RunError,
        r"python #0: unlucky raised ValueError: no luck(.|\n)*task 0 on host",
    ),
    "an index beyond the end": (
        lambda: captured(picked, np.ones(4, np.float32), np.int64(0))(
            np.ones(4, np.float32), np.int64(9)
        ),
        RunError,
        r"gather #0 \(test_bad_programs\.py:\d+\): index 9 is outside the 4 elements of the axis",
    ),
    "a state of another shape": (
        lambda: set_to(np.ones((1, 3), np.float32)),
        RunError,
        r"past.* is float32\[1,3\], expected float32\[p,2\]",
    ),
    "a state beyond its bound": (
        lambda: set_to(np.ones((4, 2), np.float32)),
        RunError,
        r"past.* is float32\[4,2\]: axis 0 \(p\) is 4, expected 0\.\.3",
    ),
    "a state that grows beyond its bound": (
        lambda: grown(9),
        RunError,
        r"past",
    ),
    "a captured global that changed": (
        after_a_change,
        RunError,
        r"FACTOR changed since scaled was captured \(test_bad_programs\.py:\d+\)",
    ),
    "a device that cannot have a node": (
        lambda: run(pinned(), {"x": X}, devices=["cpu", "npu"]),
        PlacementError,
        r"unique #0 is pinned to npu, which takes static shapes only",
    ),
    "a signature that the model lacks": (
        lambda: run_signature(),
        ConvertError,
        r"a \.onnx model has no signatures, 'decode' was asked for",
    ),
}


def repeat_cast():
    inside = body(op("Identity", "go", "going"), op("Cast", "v", "w", to=INT64), made=INT64)
    return run(repeat(inside, trips=True), {"n": np.array(3), "x": X})


def run_signature():
    with Session(relu()) as session:
        session.run({"x": row(1)}, signature="decode")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bad_program_gets_its_sentence(name, caplog):
    program, error, sentence = PROGRAMS[name]
    with caplog.at_level(logging.ERROR), pytest.raises(error, match=sentence) as caught:
        program()
    assert type(caught.value) is error, f"{type(caught.value).__name__}: {caught.value}"
    assert not isinstance(caught.value, GraphError) or error in (GraphError, ShapeError)


CHILD = """
import signal
import sys

import numpy as np

from trireme import ExecutionOptions, Session

signal.signal(signal.SIGINT, signal.default_int_handler)
options = ExecutionOptions(schedule=sys.argv[2], timeout_s=20)
with Session(sys.argv[1], execution_options=options) as session:
    session.run({"x": -np.ones(2, np.float32)})
    print("running", flush=True)
    try:
        session.run({"x": np.ones(2, np.float32)})
    except KeyboardInterrupt:
        print("interrupted", session.run({"x": -np.ones(2, np.float32)})["y"], flush=True)
"""


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_ctrl_c_ends_a_loop_and_the_session_runs_again(schedule, tmp_path):
    path = tmp_path / "endless.onnx"
    path.write_bytes(nearly_endless())
    command = [sys.executable, "-c", CHILD, str(path), schedule]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "running\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "interrupted [-1. -1.]\n"
    assert child.returncode == 0
