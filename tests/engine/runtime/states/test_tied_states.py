"""Outputs that are inputs of the next run, against ONNX Runtime that is fed its own outputs."""

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from stateful_models import STATES, PeerRuns, random_model

from trireme import ExecutionOptions, GraphError, RunError, Session, State

WAYS = {
    "serial": dict(mode="serial"),
    "parallel": dict(mode="parallel"),
    "split": dict(execution_options=ExecutionOptions(subgraphs="split")),
    "interactive": dict(execution_options=ExecutionOptions(execution="interactive")),
    "dynamic": dict(execution_options=ExecutionOptions(schedule="dynamic")),
}
CLOSE = dict(rtol=1e-5, atol=1e-6)


def run_both(model, session, seed, runs=5):
    """Run some feeds on both, and compare outputs and states."""
    rng, peer = np.random.default_rng(seed), PeerRuns(model.model, model.initial())
    for _ in range(runs):
        feeds = model.feeds(rng)
        expected = peer.run(feeds)
        given = session.run(feeds)
        assert given.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_allclose(given[name], array, **CLOSE)
    states = session.get_state()
    assert states.keys() == peer.states.keys()
    for name, array in peer.states.items():
        np.testing.assert_allclose(states[name], array, **CLOSE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "fixed"])
def test_random_models_agree_with_onnx_runtime(way, is_open):
    for seed in range(4):
        print("seed", seed)
        model = random_model(seed, is_open)
        with Session(model.model.SerializeToString(), states=STATES, **WAYS[way]) as session:
            assert [value.name for value in session.inputs] == ["x"]
            assert [value.name for value in session.outputs] == ["y"]
            run_both(model, session, seed)
            session.reset()
            run_both(model, session, seed + 1, runs=2)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "fixed"])
def test_many_random_models_agree_with_onnx_runtime(way, is_open):
    for seed in range(100, 140):
        print("seed", seed)
        model = random_model(seed, is_open)
        with Session(model.model.SerializeToString(), states=STATES, **WAYS[way]) as session:
            run_both(model, session, seed)


def test_streams_of_fixed_shapes_keep_the_order_of_states():
    for seed in range(3):
        print("seed", seed)
        model, rng = random_model(seed, False), np.random.default_rng(seed)
        peer, feeds = PeerRuns(model.model, model.initial()), [model.feeds(rng) for _ in range(6)]
        expected = [peer.run(one)["y"] for one in feeds]
        with Session(model.model.SerializeToString(), states=STATES) as session:
            with session.stream(feeds, depth=2) as stream:
                given = [one["y"] for one in stream]
            np.testing.assert_allclose(given, expected, **CLOSE)


def cache(past=("b", "p", 4), new=("b", "s", 4), present=("b", "t", 4), dtype=TensorProto.FLOAT):
    """Return a model: present = concat(past, x), y = the mean of present's rows."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["joined"], axis=1),
        helper.make_node("Identity", ["joined"], ["present"]),
        helper.make_node("ReduceMax", ["joined", "axes"], ["y"], keepdims=0),
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(
        nodes,
        "cache",
        [
            helper.make_tensor_value_info("past", dtype, past),
            helper.make_tensor_value_info("x", dtype, new),
        ],
        [
            helper.make_tensor_value_info("y", dtype, [new[0], 4]),
            helper.make_tensor_value_info("present", dtype, present),
        ],
        [axes],
    )
    opset = helper.make_opsetid("", 18)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()


def rows(count, batch=1, seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((batch, count, 4)).astype(np.float32)}


def test_a_state_is_kept_and_reset_and_given():
    with Session(cache(), states={"past": "present"}) as session:
        session.run(rows(2, seed=1))
        assert session.run(rows(1, seed=2)).keys() == {"y"}
        state = session.get_state()
        assert state["past"].shape == (1, 3, 4)
        target = np.empty((1, 4, 4), np.float32)
        made = session.run(rows(1, seed=3), out={"present": target})
        assert made["present"] is target
        np.testing.assert_array_equal(target[:, :3], state["past"])
        session.set_state(state)
        np.testing.assert_array_equal(session.run(rows(1, seed=3))["y"], made["y"])
        session.set_state({"past": np.zeros((3, 7, 4), np.float32)})
        assert session.run(rows(1, batch=3))["y"].shape == (3, 4)
        session.reset()
        assert not session.get_state()
        session.run(rows(1, batch=2))
        assert session.get_state()["past"].shape == (2, 1, 4)


def test_a_state_begins_with_what_is_given():
    first = np.full((1, 2, 4), 9, np.float32)
    with Session(cache(), states={"past": State("present", initial=first)}) as session:
        for _ in range(2):
            assert (session.run(rows(1))["y"] == 9).all()
            assert session.get_state()["past"].shape == (1, 3, 4)
            session.reset()
    start = np.full((1, 1, 4), 3, np.float32)
    shapes = dict(past=(1, 1, 4), new=(1, 1, 4), present=(1, 2, 4))
    with pytest.raises(GraphError, match="unequal sizes along axis 1, 1 and 2"):
        Session(cache(**shapes), states={"past": State("present", initial=start)})


def test_a_run_that_fails_changes_no_state():
    with Session(cache(), states={"past": "present"}) as session:
        session.run(rows(2))
        before = session.get_state()["past"]
        with pytest.raises(RunError):
            session.run({"x": np.zeros((1, 1, 5), np.float32)})
        with pytest.raises(RunError, match=r"expected float32\[1, 4\]"):
            session.run(rows(1), out={"y": np.empty((9, 9), np.float32)})
        np.testing.assert_array_equal(session.get_state()["past"], before)


def test_other_kinds_of_runs_go_on_with_the_state():
    with Session(cache(), states={"past": "present"}) as session:
        session.run(rows(2, seed=1))
        assert session.profile(rows(1), runs=2).wall_s
        assert session.get_state()["past"].shape == (1, 2, 4)
        outputs, spans = session.run_traced(rows(1, seed=2))
        assert outputs.keys() == {"y"}
        assert spans
        assert session.run_nodes(rows(1, seed=3), lambda step: None).keys() == {"y"}
        assert session.get_state()["past"].shape == (1, 4, 4)


WRONG_RULES = {
    "no input": ({"last": "present"}, "no input is called 'last'"),
    "no match": ({"last.*": "present.*"}, r"no input matches 'last\.\*'"),
    "no output": ({"past": "future"}, "'past' is tied to 'future', which is no output"),
    "stars": ({"p*": "present"}, "unequal numbers of '*'"),
    "two rules": (
        {"past": "present", "pas*": "presen*"},
        "tied to outputs 'present' and 'present'",
    ),
    "rank": ({"past": "y"}, "unequal ranks"),
    "initial": (
        {"past": State("present", initial=np.zeros((1, 2, 5), np.float32))},
        r"the initial 'past' is float32\[1,2,5\], expected float32\[b,p,4\]",
    ),
}


@pytest.mark.parametrize("case", WRONG_RULES)
def test_rules_that_do_not_fit_are_errors(case):
    rules, sentence = WRONG_RULES[case]
    match = sentence if "\\" in sentence else re.escape(sentence)
    with pytest.raises(GraphError, match=match):
        Session(cache(), states=rules)


def test_unequal_types_are_an_error():
    model = onnx.load_from_string(cache())
    model.graph.node[1].CopyFrom(
        helper.make_node("Cast", ["joined"], ["present"], to=TensorProto.FLOAT16)
    )
    model.graph.output[1].type.tensor_type.elem_type = TensorProto.FLOAT16
    with pytest.raises(GraphError, match="have unequal types"):
        Session(model.SerializeToString(), states={"past": "present"})


def test_a_state_stays_within_its_bound():
    bounded = {"past": ("b", "p<=4", 4)}
    with Session(cache(), states={"past": "present"}, shapes=bounded) as session:
        session.run(rows(3))
        with pytest.raises(RunError, match=r"would be 5 long along axis 1, its bound is p<=4"):
            session.run(rows(2))
        assert session.get_state()["past"].shape == (1, 3, 4)
        session.run(rows(1))
        with pytest.raises(RunError, match=r"axis 1 \(p\) is 5, expected 0\.\.4"):
            session.set_state({"past": np.zeros((1, 5, 4), np.float32)})


def test_the_batch_stays_while_a_state_is_held():
    with Session(cache(), states={"past": "present"}) as session:
        session.run(rows(1, batch=2))
        with pytest.raises(RunError, match="holds b = 2, the inputs have b = 1"):
            session.run(rows(1, batch=1))
        session.reset()
        session.run(rows(1, batch=1))


def test_a_state_that_cannot_be_empty_must_be_given():
    model = onnx.load_from_string(cache(past=("q", "p", 4), present=("q", "t", 4)))
    model.graph.node[0].input[1] = "past"
    model.graph.node[2].input[0] = "x"
    with Session(model.SerializeToString(), states={"past": "present"}) as session:
        with pytest.raises(RunError, match="has no value before the first run: q follows from no"):
            session.run(rows(1))
        session.set_state({"past": np.zeros((2, 3, 4), np.float32)})
        session.run(rows(1))
        assert session.get_state()["past"].shape == (2, 6, 4)


def test_a_size_that_every_run_makes_holds_before_the_first_too():
    model = cache(new=(1, "s", 4), past=("q", "p", 4))
    with Session(model, states={"past": "present"}) as session:
        session.run(rows(2))
        assert session.get_state()["past"].shape == (1, 2, 4)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"other": np.zeros(1)}, "the model has no state 'other'"),
        (
            {"past": np.zeros((1, 2, 4))},
            r"state 'past' is float64\[1,2,4\], expected float32\[b,p,4\]",
        ),
        ({"past": np.zeros((2, 4), np.float32)}, r"float32\[2,4\], expected"),
    ],
)
def test_a_state_of_another_shape_is_an_error(state, sentence):
    with Session(cache(), states={"past": "present"}) as session:
        session.run(rows(1))
        with pytest.raises(RunError, match=sentence):
            session.set_state(state)
        assert session.get_state()["past"].shape == (1, 1, 4)


def test_a_state_is_no_feed():
    with Session(cache(), states={"past": "present"}) as session:
        with pytest.raises(RunError, match="not an input: past"):
            session.run({**rows(1), "past": np.zeros((1, 0, 4), np.float32)})
        with pytest.raises(RunError, match="missing: x"):
            session.run({})
