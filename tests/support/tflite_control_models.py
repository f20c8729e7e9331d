"""TFLite files with branches, loops, calls and variables."""

import numpy as np
from tflite_builder import Op, Sub, T, constant, model_of

X = (2, 3)

RESOURCE = T((1,), "resource")


def f32(value, shape=()):
    return constant(np.full(shape, value, np.float32))


def unary(code, name=""):
    return Sub([T(X), T(X)], [Op(code, [0], [1])], [0], [1], name)


def handle(tensor, name="counter"):
    options = {"Container": "", "SharedName": name}
    return Op("VAR_HANDLE", [], [tensor], "VarHandleOptions", options)


def read(source, target):
    return Op("READ_VARIABLE", [source], [target], "ReadVariableOptions")


def assign(source, value):
    return Op("ASSIGN_VARIABLE", [source, value], [], "AssignVariableOptions")


def add(a, b, y):
    return Op("ADD", [a, b], [y], "AddOptions")


def initial(value, name="counter"):
    """A subgraph that assigns twice a constant."""
    return Sub(
        [RESOURCE, f32(value / 2, X), T(X)], [handle(0, name), add(1, 1, 2), assign(0, 2)], [], []
    )


def once(subgraph):
    return Op("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": subgraph})


def branch(then, other):
    """y = then(x) if sum(x) > 0 else other(x)."""
    total, zero = T(()), f32(0)
    axes = constant(np.array([0, 1], np.int32))
    return Sub(
        [T(X), axes, total, zero, T((), "bool"), T(X)],
        [
            Op("SUM", [0, 1], [2], "ReducerOptions"),
            Op("GREATER", [2, 3], [4]),
            Op(
                "IF",
                [4, 0],
                [5],
                "IfOptions",
                {"ThenSubgraphIndex": then, "ElseSubgraphIndex": other},
            ),
        ],
        [0],
        [5],
    )


def loop(inputs, outputs, condition=1, body=2):
    options = {"CondSubgraphIndex": condition, "BodySubgraphIndex": body}
    return Op("WHILE", inputs, outputs, "WhileOptions", options)


def below(limit, *others):
    """The condition turn < limit, beside other carried values."""
    tensors = [T((), "int32"), *others, constant(np.array(limit, np.int32)), T((), "bool")]
    n = len(tensors)
    return Sub(tensors, [Op("LESS", [0, n - 2], [n - 1])], list(range(n - 2)), [n - 1], "below")


ONE = constant(np.array(1, np.int32))


def counted(limit, start=0):
    """x doubles `limit - start` times and is tanh of it each time."""
    main = Sub(
        [constant(np.array(start, np.int32)), T(X), T((), "int32"), T(X)],
        [loop([0, 1], [2, 3])],
        [1],
        [2, 3],
    )
    body = Sub(
        [T((), "int32"), T(X), ONE, T((), "int32"), T(X), T(X)],
        [add(0, 2, 3), add(1, 1, 4), Op("TANH", [4], [5])],
        [0, 1],
        [3, 5],
        "body",
    )
    return model_of([main, below(limit, T(X)), body])


def growing():
    """Each turn appends x to what is carried."""
    main = Sub(
        [constant(np.array(0, np.int32)), T(X), T((), "int32"), T((8, 3))],
        [loop([0, 1], [2, 3])],
        [1],
        [3],
    )
    body = Sub(
        [T((), "int32"), T(X), ONE, T((), "int32"), f32(7, (2, 3)), T((4, 3))],
        [add(0, 2, 3), Op("CONCATENATION", [1, 4], [5], "ConcatenationOptions", {"Axis": 0})],
        [0, 1],
        [3, 5],
    )
    return model_of([main, below(3, T(X)), body])


def nested():
    """A loop whose body holds an IF of a loop."""
    main = Sub(
        [constant(np.array(0, np.int32)), T(X), T((), "int32"), T(X)],
        [loop([0, 1], [2, 3])],
        [1],
        [3],
    )
    two = constant(np.array(2, np.int32))
    options = {"ThenSubgraphIndex": 3, "ElseSubgraphIndex": 4}
    body = Sub(
        [T((), "int32"), T(X), ONE, T((), "int32"), two, T((), "bool"), T(X)],
        [add(0, 2, 3), Op("LESS", [0, 4], [5]), Op("IF", [5, 1], [6], "IfOptions", options)],
        [0, 1],
        [3, 6],
    )
    inner = Sub(
        [constant(np.array(0, np.int32)), T(X), T((), "int32"), T(X)],
        [loop([0, 1], [2, 3], 5, 6)],
        [1],
        [3],
    )
    step = Sub(
        [T((), "int32"), T(X), ONE, T((), "int32"), T(X), f32(0.5)],
        [add(0, 2, 3), add(1, 5, 4)],
        [0, 1],
        [3, 4],
    )
    return model_of([main, below(4, T(X)), body, inner, unary("NEG"), below(3, T(X)), step])


def counter():
    """counter += x, from 3; the sum is the output."""
    main = Sub(
        [T(X), RESOURCE, T(X), T(X), T(X)],
        [once(1), handle(1), read(1, 2), add(2, 0, 3), assign(1, 3), read(1, 4)],
        [0],
        [4, 2],
    )
    return model_of([main, initial(3)])


def counter_in_a_loop():
    """The body adds x to a variable that the condition does not see."""
    main = Sub(
        [T(X), constant(np.array(0, np.int32)), T((), "int32"), T(X), RESOURCE, T(X)],
        [once(3), loop([1, 0], [2, 3]), handle(4), read(4, 5)],
        [0],
        [5, 3],
    )
    body = Sub(
        [T((), "int32"), T(X), ONE, T((), "int32"), RESOURCE, T(X), T(X), T(X)],
        [add(0, 2, 3), handle(4), read(4, 5), add(5, 1, 6), assign(4, 6), add(1, 6, 7)],
        [0, 1],
        [3, 7],
    )
    return model_of([main, below(3, T(X)), body, initial(1)])


def counter_in_a_branch():
    """A branch assigns, the other reads another variable."""
    main = branch(1, 2)
    main.operators[:0] = [once(3), once(4)]
    then = Sub(
        [T(X), RESOURCE, T(X), T(X)],
        [handle(1), read(1, 2), add(2, 0, 3), assign(1, 3)],
        [0],
        [3],
    )
    other = Sub([T(X), RESOURCE, T(X), T(X)], [handle(1, "b"), read(1, 2), add(2, 0, 3)], [0], [3])
    return model_of([main, then, other, initial(2), initial(-4, "b")])


def resource_as_operand():
    """The handle itself is carried through the loop."""
    main = Sub(
        [T(X), constant(np.array(0, np.int32)), RESOURCE, T((), "int32"), RESOURCE, T(X)],
        [once(3), handle(2), loop([1, 2], [3, 4]), read(4, 5)],
        [0],
        [5],
    )
    condition = below(2, RESOURCE)
    body = Sub(
        [T((), "int32"), RESOURCE, ONE, T((), "int32"), T(X), T(X)],
        [add(0, 2, 3), read(1, 4), add(4, 4, 5), assign(1, 5)],
        [0, 1],
        [3, 1],
    )
    return model_of([main, condition, body, initial(1)])


MODELS = {
    "if": model_of([branch(1, 2), unary("NEG"), unary("TANH")]),
    "if of one input twice": model_of([branch(1, 1), unary("ABS")]),
    "while": counted(4),
    "while without a turn": counted(2, 2),
    "while that grows": growing(),
    "nested": nested(),
    "variable": counter(),
    "variable in a loop": counter_in_a_loop(),
    "variable in a branch": counter_in_a_branch(),
    "variable as an operand": resource_as_operand(),
}
