"""TFLite files with branches, loops, calls and variables, against LiteRT over several runs."""

import time

import numpy as np
import pytest
from litert import interpreter
from tflite_builder import Op, SignatureDef, Sub, T, constant, model_of
from tflite_control_models import (
    MODELS,
    ONE,
    RESOURCE,
    X,
    add,
    assign,
    below,
    branch,
    counter,
    handle,
    initial,
    loop,
    once,
    read,
    unary,
)

from trireme import Session, convert
from trireme.ir.interpreter import interpret
from trireme.runtime.program.options import ExecutionOptions
from trireme.support.errors import ConvertError, InternalError, ModelFileError, TriremeError

RNG = np.random.default_rng(5)

FEEDS = [RNG.uniform(-2, 2, X).astype(np.float32) for _ in range(4)]


def litert_runs(data, feeds):
    made = interpreter(data, reference=False)
    for x in feeds:
        for detail in made.get_input_details():
            made.set_tensor(detail["index"], x)
        made.invoke()
        yield {d["name"]: made.get_tensor(d["index"]) for d in made.get_output_details()}


@pytest.mark.parametrize("name", MODELS)
def test_reference_agrees_with_litert_over_runs(name):
    graph, states = convert(MODELS[name]), {}
    for x, want in zip(FEEDS, litert_runs(MODELS[name], FEEDS), strict=True):
        made = interpret(graph, dict.fromkeys(graph.inputs, x), states=states)
        for output in graph.outputs:
            got = want.pop(graph.values[output].name)
            np.testing.assert_allclose(made[output], got, rtol=1e-5, atol=1e-6)
        assert not want


@pytest.mark.parametrize("name", MODELS)
def test_session_agrees_with_litert_over_runs(name):
    with Session(MODELS[name]) as session:
        for x, want in zip(FEEDS, litert_runs(MODELS[name], FEEDS), strict=True):
            made = session.run({value.name: x for value in session.graph.input_values()})
            assert made.keys() == want.keys()
            for output, array in made.items():
                np.testing.assert_allclose(array, want[output], rtol=1e-5, atol=1e-6)


def rnn_in_a_loop():
    """The body has a variable tensor: a turn hands it on to the next, a run to the next."""
    weights = [
        constant(RNG.uniform(-0.5, 0.5, shape).astype(np.float32)) for shape in ((3, 3),) * 2
    ]
    bias = constant(RNG.uniform(-0.5, 0.5, 3).astype(np.float32))
    main = Sub(
        [constant(np.array(0, np.int32)), T(X), T((), "int32"), T(X)],
        [loop([0, 1], [2, 3])],
        [1],
        [3],
    )
    rnn = Op("RNN", [1, 4, 5, 6, 7], [8], "RNNOptions", {"FusedActivationFunction": 4})
    state = T(X, variable=True)
    body = Sub(
        [T((), "int32"), T(X), ONE, T((), "int32"), *weights, bias, state, T(X)],
        [add(0, 2, 3), rnn],
        [0, 1],
        [3, 8],
    )
    return model_of([main, below(3, T(X)), body])


def test_a_variable_tensor_of_a_body_lives_on():
    """LiteRT loses it between runs, unless it keeps all tensors."""
    data = rnn_in_a_loop()
    made = interpreter(data, keep=True)
    (given,), (found,) = made.get_input_details(), made.get_output_details()
    with Session(data) as session:
        for x in FEEDS:
            made.set_tensor(given["index"], x)
            made.invoke()
            (got,) = session.run({given["name"]: x}).values()
            np.testing.assert_allclose(got, made.get_tensor(found["index"]), atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_files_convert_or_are_refused_at_once(seed):
    print("seed", seed)
    rng = np.random.default_rng(seed)
    sound = [*MODELS.values(), rnn_in_a_loop()]
    begin = time.perf_counter()
    for _ in range(60):
        data = np.frombuffer(sound[int(rng.integers(len(sound)))], np.uint8).copy()
        for place in rng.integers(0, len(data) // 4, int(rng.integers(1, 4))):
            number = int(rng.choice([0, 1, 2, 3, 5, 7, 2**31 - 1, 2**32 - 1]))
            data[4 * place : 4 * place + 4] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)
        try:
            convert(data.tobytes())
        except InternalError:
            raise
        except TriremeError:
            continue
    assert time.perf_counter() - begin < 60


def test_variables_have_a_limit():
    net = [T((2**20, 2**10)), T((3, 2**10)), T((3, 3)), T((3,)), T((2**20, 3), variable=True)]
    net[1:4] = [constant(np.zeros(t.shape, np.float32)) for t in net[1:4]]
    net[4] = T((2**27, 3), variable=True)
    op = Op("RNN", [0, 1, 2, 3, 4], [5], "RNNOptions", {"FusedActivationFunction": 4})
    data = model_of([Sub([*net, T((2**20, 3))], [op], [0], [5])])
    with pytest.raises(ConvertError, match="variables up to 't4' take 1610612736 bytes"):
        convert(data)


def test_a_state_has_the_name_of_the_variable_and_is_reset():
    with Session(counter()) as session:
        (first,), (second,) = (
            {k: v for k, v in session.run({"t0": FEEDS[0]}).items() if k == "t4"}.values()
            for _ in range(2)
        )
        np.testing.assert_allclose(second - first, FEEDS[0], rtol=1e-5)
        np.testing.assert_array_equal(session.states["counter"], second)
        session.states.clear()
        np.testing.assert_array_equal(session.run({"t0": FEEDS[0]})["t4"], first)


def test_call_is_the_subgraph_itself():
    """LiteRT has no kernel of CALL."""
    main = Sub(
        [T(X), T(X), T(X)],
        [Op("CALL", [0], [1], "CallOptions", {"Subgraph": 1}), Op("NEG", [1], [2])],
        [0],
        [2, 1],
    )
    graph = convert(model_of([main, unary("ABS")]))
    made = interpret(graph, {graph.inputs[0]: FEEDS[0]})
    want = [-np.abs(FEEDS[0]), np.abs(FEEDS[0])]
    for output, array in zip(graph.outputs, want, strict=True):
        np.testing.assert_array_equal(made[output], array)
    assert [graph.values[output].name for output in graph.outputs] == ["t2", "t1"]


def test_quantised_values_pass_through_control_flow():
    q = T(X, "int8", (0.1,), (3,))
    options = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    main = Sub([T((), "bool"), q, q], [Op("IF", [0, 1], [2], "IfOptions", options)], [0, 1], [2])
    then = Sub([q, q], [Op("RELU", [0], [1])], [0], [1])
    data = model_of([main, then, Sub([q, q], [add(0, 0, 1)], [0], [1])])
    x = np.arange(-3, 3, dtype=np.int8).reshape(X) * 20
    for condition in (False, True):
        made = interpreter(data)
        feeds = {"t0": np.array(condition), "t1": x}
        for detail in made.get_input_details():
            made.set_tensor(detail["index"], feeds[detail["name"]])
        made.invoke()
        want = made.get_tensor(made.get_output_details()[0]["index"])
        with Session(data) as session:
            np.testing.assert_array_equal(session.run(feeds)["t2"], want)


def uninitialised():
    main = Sub([T(X), RESOURCE, T(X), T(X)], [handle(1), read(1, 2), add(0, 2, 3)], [0], [3])
    return model_of([main])


def assigned_of_another_shape():
    main = Sub(
        [T((1, 3)), RESOURCE, T(X)], [once(1), handle(1), assign(1, 0), read(1, 2)], [0], [2]
    )
    return model_of([main, initial(1)])


def first_assigned_in_a_body():
    main = branch(1, 2)
    then = Sub([T(X), RESOURCE], [handle(1), assign(1, 0)], [0], [0])
    return model_of([main, then, unary("NEG")])


def used_before_its_first_value():
    main = Sub([T(X), RESOURCE, T(X)], [handle(1), assign(1, 0), once(1), read(1, 2)], [0], [2])
    return model_of([main, initial(1)])


REFUSED = {
    "read before CALL_ONCE or ASSIGN_VARIABLE": uninitialised,
    r"variable 'counter' is float32\[2,3\] and becomes float32\[1,3\]": assigned_of_another_shape,
    "variable 'counter' has no value before this body": first_assigned_in_a_body,
    "is used before CALL_ONCE gives it a first value": used_before_its_first_value,
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_variables_cannot_do_is_a_sentence(sentence):
    with pytest.raises(ConvertError, match=sentence):
        convert(REFUSED[sentence]())


def test_calls_without_end_are_damage():
    options = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 1}
    again = Sub(
        [T((), "bool"), T((), "bool")], [Op("IF", [0, 0], [1], "IfOptions", options)], [0], [1]
    )
    with pytest.raises(ModelFileError, match="calls deep|unfold to over"):
        convert(model_of([again, again]))


def test_a_subgraph_that_is_not_there_is_damage():
    with pytest.raises(ModelFileError, match="calls subgraph 7, there are 3"):
        convert(model_of([branch(1, 7), unary("NEG"), unary("NEG")]))


def test_an_initial_loop_is_refused():
    init = Sub(
        [constant(np.array(0, np.int32)), T((), "int32"), RESOURCE],
        [loop([0], [1], 2, 3), handle(2), assign(2, 1)],
        [],
        [],
    )
    body = Sub([T((), "int32"), ONE, T((), "int32")], [add(0, 1, 2)], [0], [2])
    data = model_of([Sub([T(X), T(X)], [once(1), add(0, 0, 1)], [0], [1]), init, below(5), body])
    with pytest.raises(ConvertError, match="has a loop, which may run without end"):
        convert(data)


def test_called_subgraphs_are_no_entries(caplog):
    spare = unary("ABS", "spare")
    graphs = [branch(1, 2), unary("NEG"), unary("TANH"), spare]
    convert(model_of(graphs[:3]))
    assert not caplog.records
    convert(model_of(graphs))
    assert "holds 2 graphs: 'main' is taken, not 'spare'" in caplog.text.replace(
        "subgraph_0", "main"
    )


def test_a_signature_takes_the_subgraphs_that_it_calls():
    graphs = [unary("ABS"), branch(2, 0), unary("NEG")]
    signature = SignatureDef("run", 1, {"x": 0}, {"y": 5})
    with Session(
        model_of(graphs, [signature]),
        execution_options=ExecutionOptions(signature="run"),
    ) as session:
        for x in FEEDS:
            want = -x if x.sum() > 0 else np.abs(x)
            np.testing.assert_array_equal(session.run({"x": x})["y"], want)
