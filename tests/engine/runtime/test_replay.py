"""Bundles: a recorded run is the same when run again, whatever ran before; edits are found."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from sweep import sweep
from toy_device import ToyDevice
from toy_graphs import devices, feeds_of, random_graph

from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.replay import (
    PLACEMENT,
    VERSION,
    compared,
    first_divergence,
    load_bundle,
    record,
    rerun,
    save_bundle,
)
from trireme.runtime.session.session import Session
from trireme.support.dtypes import numpy_dtype
from trireme.support.errors import ModelFileError, RunError, TriremeError

T = TensorType((3, 8), "float32")


def open_session(graph, toys=None, execution="sunk", placement=None, mode="auto", **asked):
    toys = toys or list(devices().values())
    return Session(
        graph,
        devices=toys,
        execution_options=ExecutionOptions(passes=(), execution=execution),
        calibration=Calibration(),
        placement=placement,
        mode=mode,
        placement_options=PlacementOptions(**asked),
    )


def counter():
    b = GraphBuilder("counter")
    step = b.input("step", T)
    old = b.add("variable", b.constant("zero", np.zeros((3, 8), np.float32)), state="total")
    return b.finish(b.add("assign", b.add("add", old, step), state="total", names=["total"]))


def test_states_of_earlier_runs_do_not_enter_a_bundle():
    feeds = {"step": np.ones((3, 8), np.float32)}
    with open_session(counter()) as session:
        session.run(feeds)
        session.run(feeds)
        recorded = record(session, feeds)
    with open_session(counter()) as session:
        assert first_divergence(recorded, rerun(session, feeds, recorded)) is None
        session.run(feeds)
        assert first_divergence(recorded, rerun(session, feeds, recorded)) is None


def test_a_run_with_pins_is_repeated_without_them(tmp_path):
    """What is recorded is the model and its placement, however the placement came to be."""
    graph = random_graph(random.Random(5), 12)
    graph = replace(graph, nodes=tuple(replace(node, pin=None) for node in graph.nodes))
    feeds, name = feeds_of(graph, 5), list(devices())[-1]
    free = [n.op for n in graph.nodes if devices()[name].unsupported_reason(graph, n) is None]
    with open_session(graph, pins={f"op:{free[0]}": name}) as session:
        recorded = record(session, feeds)
        placement = session.placement
        assert placement.nodes_on(name)
    with open_session(graph, placement=placement) as session:
        assert first_divergence(recorded, rerun(session, feeds, recorded)) is None


@pytest.mark.parametrize("execution", ["sunk", "interactive"])
@pytest.mark.parametrize("seed", sweep(range(4), always=[0, 2]))
def test_a_parallel_run_is_repeated_in_its_order(seed, execution):
    print("seed", seed)
    graph = random_graph(random.Random(seed), 25)
    feeds = feeds_of(graph, seed)
    with open_session(graph, mode="parallel", execution=execution, objective="serial") as session:
        recorded = record(session, feeds, seed)
        assert sorted(recorded.order) == list(range(len(session.plan.tasks)))
    with open_session(graph, execution=execution, objective="serial") as session:
        assert first_divergence(recorded, rerun(session, feeds, recorded)) is None
        other = {name: array + 1 for name, array in feeds.items()}
        one, two = first_divergence(recorded, rerun(session, other, recorded))
        assert one.value == two.value and one.sha256 != two.sha256


class OnceWrong(ToyDevice):
    """A device whose first launch is off by a little, as if tasks had raced in it."""

    def compile(self, graphs):
        made = super().compile(graphs)
        for executable in made:
            executable.bind = lambda args, scratch, e=executable: _OnceWrong(
                type(e).bind(e, args, scratch), args
            )
        return made


class _OnceWrong:
    def __init__(self, call, args):
        self.call, self.args, self.launches = call, args, 0

    def launch(self, profile=False):
        event = self.call.launch(profile)
        self.launches += 1
        if self.launches == 1:
            last = self.args[-1]
            last.handle[last.offset : last.offset + last.nbytes].view(np.float32)[0] += 0.5
        return event


def test_what_is_recorded_is_the_run_itself_and_not_its_repetition():
    """Only the run that was recorded went wrong: it returned what no later run does."""
    b = GraphBuilder("chain")
    x = b.input("x", T)
    graph = b.finish(b.add("neg", b.add("exp", x, pin="one"), pin="one", names=["y"]))
    feeds = {"x": np.ones((3, 8), np.float32)}
    with open_session(graph, [OnceWrong("one")]) as session:
        recorded = record(session, feeds)
        one, two = first_divergence(recorded, rerun(session, feeds, recorded))
    assert one.value == two.value == "y (returned)" and one.sha256 != two.sha256


def test_another_model_is_refused():
    graph = random_graph(random.Random(1), 10)
    feeds = feeds_of(graph, 1)
    with open_session(graph) as session:
        recorded = record(session, feeds)
        with pytest.raises(RunError, match="the model is not the one"):
            rerun(session, feeds, replace(recorded, graph_sha256="0" * 64))


def test_tasks_whose_driver_tells_times_a_little_wrong_are_recorded_in_an_order(monkeypatch):
    """Kernels behind one another start by the driver's clock, which may say that one was early."""
    graph = random_graph(random.Random(3), 25)
    feeds, rng = feeds_of(graph, 3), random.Random(3)
    with open_session(graph, mode="parallel") as session:
        inner = session.runs.profiled

        def early():
            return [replace(s, start_s=s.start_s - rng.uniform(0, 0.01)) for s in inner()]

        monkeypatch.setattr(session.runs, "profiled", early)
        recorded = record(session, feeds)
        assert sorted(recorded.order) == list(range(len(session.plan.tasks)))
        assert first_divergence(recorded, rerun(session, feeds, recorded)) is None


def test_another_plan_is_refused():
    graph = random_graph(random.Random(1), 10)
    feeds = feeds_of(graph, 1)
    with open_session(graph) as session:
        recorded = record(session, feeds)
        for plan in (recorded.plan + "\nmore", recorded.plan.rpartition("\n")[0], ""):
            with pytest.raises(RunError, match="the plan is not the one"):
                rerun(session, feeds, replace(recorded, plan=plan))
        for order in (recorded.order[1:], (*recorded.order, 99), (-1, *recorded.order[1:])):
            with pytest.raises(RunError, match="the order does not name each"):
                rerun(session, feeds, replace(recorded, order=order))


def test_bundles_are_compared_only_if_they_can_be():
    graph = random_graph(random.Random(1), 10)
    feeds = feeds_of(graph, 1)
    with open_session(graph) as session:
        one = record(session, feeds)
        two = record(session, {name: array + 1 for name, array in feeds.items()})
    with pytest.raises(RunError, match="the model is not the one"):
        first_divergence(one, replace(one, graph_sha256="0" * 64))
    assert first_divergence(one, two)[0].node == "the caller"
    returned = replace(two, digests=one.digests[-1:], inputs=one.inputs)
    assert first_divergence(one, returned) is None
    assert compared(one, returned) == len(one.inputs) + 1 < compared(one, one)


@pytest.fixture
def bundle(tmp_path):
    """A folder with a bundle, and what is in it; its input has the name of an option of savez."""
    b = GraphBuilder("named")
    x = b.input("file", T)
    y = b.input("a/../b:0", TensorType((), "bfloat16"))
    graph = b.finish(b.add("neg", x, names=["y"]), b.add("cast", y, to="float32", names=["z"]))
    rng = np.random.default_rng(0)
    feeds = {"file": rng.standard_normal((3, 8)).astype(np.float32)}
    with open_session(graph) as session:
        dtype = next(v for v in session.inputs if v.name != "file").type
        feeds["a/../b:0"] = np.asarray(1.5, numpy_dtype(dtype.dtype))
        recorded = record(session, feeds)
        save_bundle(tmp_path / "bundle", session, recorded, feeds)
        loaded, given = load_bundle(tmp_path / "bundle")
        assert loaded == recorded
        assert first_divergence(recorded, rerun(session, given, loaded)) is None
    return tmp_path / "bundle", recorded


def broken(rng, path):
    """Damage a file: cut, a byte changed, bytes put in, emptied or gone."""
    data, at = bytearray(path.read_bytes()), rng.randrange(len(path.read_bytes()))
    way = rng.randrange(5)
    if way == 0:
        del data[at:]
    elif way == 1:
        data[at] ^= 1 << rng.randrange(8)
    elif way == 2:
        data[at:at] = bytes(rng.randrange(256) for _ in range(5))
    else:
        data.clear()
    path.write_bytes(data)
    if way == 4:
        path.unlink()


@pytest.mark.parametrize("name", ["run.json", "inputs.npz"])
def test_a_damaged_bundle_is_an_error_or_what_it_was(bundle, name):
    folder, recorded = bundle
    whole, refused, rng = (folder / name).read_bytes(), 0, random.Random(5)
    print("seed 5")
    for _ in range(400):
        broken(rng, folder / name)
        try:
            run, feeds = load_bundle(folder)
        except TriremeError as error:
            refused += 1
            assert str(folder) in str(error) or "known:" in str(error)
        else:
            assert set(feeds) == {given.name for given in run.inputs}
            assert name == "run.json" or run == recorded
        (folder / name).write_bytes(whole)
    assert refused > 200


WRONG = [
    ("version", VERSION + 1, "version"),
    ("version", None, "version"),
    ("order", 5, "not a bundle"),
    ("order", ["a"], "not a bundle"),
    ("digests", [{}], "not a bundle"),
    ("mode", "fast", "mode"),
    ("digests", 3, "not a bundle"),
    ("inputs", [{"name": "x"}], "not a bundle"),
    ("inputs", {"name": 1}, "not a bundle"),
    ("seed", [], "not a bundle"),
]


@pytest.mark.parametrize(("field", "value", "said"), WRONG)
def test_fields_of_another_kind_are_refused(bundle, field, value, said):
    folder, _ = bundle
    raw = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**raw, field: value}))
    with pytest.raises(TriremeError, match=said):
        load_bundle(folder)


def test_a_bundle_has_a_placement(bundle):
    folder, _ = bundle
    (folder / PLACEMENT).unlink()
    with pytest.raises(ModelFileError, match="it has no placement"):
        load_bundle(folder)


def test_other_inputs_than_those_recorded_are_refused(bundle):
    folder, _ = bundle
    with np.load(folder / "inputs.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    np.savez(folder / "inputs.npz", **{**arrays, "input0": arrays["input0"][::-1]})
    with pytest.raises(ModelFileError, match="is not the one that was recorded"):
        load_bundle(folder)
