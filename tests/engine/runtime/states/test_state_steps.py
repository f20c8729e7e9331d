"""Runs that take the states as the last run left them: the same bits, and the same refusals."""

import numpy as np
import pytest
from growing_attention import DEPTH, HEADS, attention_model, attention_peer, rows, same
from onnx import TensorProto, helper, numpy_helper
from stateful_models import STATES

from trireme import RunError, Session
from trireme.runtime.session.stateful_program import StateSteps


@pytest.fixture
def steps(monkeypatch):
    """The sizes of the runs that looked at no states."""
    found, plain = [], StateSteps.run

    def run(self, given):
        made = plain(self, given)
        if made is not None:
            found.append(self.sizes)
        return made

    monkeypatch.setattr(StateSteps, "run", run)
    return found


@pytest.mark.parametrize("threads", [1, 2])
def test_steps_have_the_bits_of_runs_that_look_at_the_states(threads, steps):
    data, rng = attention_model().SerializeToString(), np.random.default_rng(10)
    with (
        Session(data, states=STATES, threads=threads) as session,
        Session(data, states=STATES, threads=threads) as other,
    ):
        for turn, count in enumerate((5, 1, 1, 1, 60, 1, 2, 1, 1, 1)):
            feeds, done = rows(rng, count, batch=2), len(steps)
            made = session.run(feeds)
            # the first run makes the buffers, and 60 rows take more room
            assert len(steps) - done == (0 if turn == 0 or count == 60 else 1)
            wanted = other.run(feeds, out={})
            assert made.keys() == wanted.keys()
            assert made["y"].tobytes() == wanted["y"].tobytes()
            if turn % 3 == 2:
                for name, state in other.get_state().items():
                    assert session.get_state()[name].tobytes() == state.tobytes()
                assert session.stages[0].shapes == other.stages[0].shapes
        assert next(iter(session.plan.graph.input_values())).shape == (2, HEADS, 1, DEPTH)


def test_a_step_refuses_what_a_first_run_refuses(steps):
    model, rng = attention_model(), np.random.default_rng(11)
    peer, shapes = attention_peer(model, 1), {"past.k": ("b", HEADS, "p<=20", DEPTH)}
    good = rows(rng, 1)
    bad = {
        "missing: v": {name: good[name] for name in "qk"},
        "not an input: w": {**good, "w": good["v"]},
        "expected float32": {**good, "q": good["q"].astype(np.float64)},
        r"input 'q' is float32\[2,1,8\]": {**good, "q": good["q"][0]},
        "holds b = 1": rows(rng, 1, batch=2),
        "would be 21 long": rows(rng, 18),
        "are a list": [good],
    }
    with Session(model.SerializeToString(), states=STATES, shapes=shapes) as session:
        for count in (2, 1):
            feeds = rows(rng, count)
            same(session.run(feeds), peer.run(feeds))
        for why, feeds in bad.items():
            with pytest.raises(RunError, match=why):
                session.run(feeds)
        done = len(steps)
        turned = {name: np.asfortranarray(array) for name, array in rows(rng, 2).items()}
        for feeds in (rows(rng, 3), turned):
            same(session.run(feeds), peer.run(feeds))
        assert len(steps) == done + 2
        lists = {name: array.tolist() for name, array in good.items()}
        with pytest.raises(RunError, match="float64"):
            session.run(lists)
        same(session.get_state(), peer.states)
        session.close()
        with pytest.raises(RunError, match="closed"):
            session.run(good)


def test_a_step_with_a_wrong_index_changes_no_state(steps):
    model, rng = attention_model(), np.random.default_rng(12)
    table = rng.standard_normal((5, DEPTH)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    model.graph.node.insert(0, helper.make_node("Gather", ["table", "ids"], ["q"]))
    model.graph.input[0].CopyFrom(
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", HEADS, "s"])
    )
    peer = attention_peer(model, 1)
    with Session(model.SerializeToString(), states=STATES) as session:
        for last in (4, 3, 7, 2, 9, 9, 1):
            feeds = rows(rng, 2)
            del feeds["q"]
            feeds["ids"] = np.array([[[0, 1], [2, last]]])
            if last < 5:
                same(session.run(feeds), peer.run(feeds))
            else:
                with pytest.raises(RunError, match=f"index {last}"):
                    session.run(feeds)
        assert len(steps) == 3
        same(session.get_state(), peer.states)
