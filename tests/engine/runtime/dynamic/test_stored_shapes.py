"""Programs of open shapes kept from one process to the next: one that ran shapes first leaves its
program at these, and a session of a later process runs it, or prepares the model for other shapes.
"""

import threading

import numpy as np
import pytest

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime import stored
from trireme.runtime.options import ExecutionOptions
from trireme.runtime.session import Session
from trireme.runtime.shared_programs import PROGRAMS
from trireme.support.errors import RunError

pytestmark = pytest.mark.usefixtures("no_calibration")


class Forgets(dict):
    def get(self, key, default=None):
        return default


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Sessions share nothing in this process, as those of several processes."""
    monkeypatch.setattr(PROGRAMS, "offer", lambda key, made: None)
    monkeypatch.setattr(stored, "_ENTRIES", Forgets())


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def opened(folder):
    """Open a session whose caches are in the folder; all are closed at the end."""
    sessions = []

    def open_one(path):
        caches = {"cpu": {"cache_dir": folder}}
        how = ExecutionOptions(model_cache=folder, device_options=caches)
        sessions.append(Session(path, execution_options=how, threads=2))
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()


def entries(folder):
    """The entries of a folder, once those under way are written."""
    for thread in threading.enumerate():
        if isinstance(thread, stored.Storing):
            thread.join()
    return sorted(folder.glob("*.program"))


@pytest.fixture
def open_model(tmp_path):
    """Rows of words and of positions, a product and a softmax, whose batch and length are open."""
    rng = np.random.default_rng(5)
    b = GraphBuilder("open")
    ids = b.input("ids", TensorType(("n", "t"), "int64"))
    table = b.constant("table", rng.standard_normal((10, 64)).astype(np.float32))
    weights = b.constant("weights", rng.standard_normal((64, 96)).astype(np.float32))
    rows = b.add("matmul", b.add("gather", table, ids, axis=0), weights)
    path = tmp_path / "open.trm"
    trireme.save(b.finish(b.add("softmax", b.add("relu", rows), axis=-1)), path)
    return path


def ids_of(*shape):
    return {"ids": np.random.default_rng(shape[-1]).integers(0, 10, shape)}


def same(found, wanted):
    return {k: a.tobytes() for k, a in found.items()} == {k: a.tobytes() for k, a in wanted.items()}


def test_open_shapes_start_from_the_program_of_the_first_shapes(open_model, opened, folder):
    first = opened(open_model)
    assert not first.is_stored and not entries(folder)
    wanted = {n: first.run(ids_of(2, n)) for n in (7, 3, 40)}
    assert len(entries(folder)) == 1
    again = opened(open_model)
    assert again.is_stored and [str(v.type) for v in again.inputs] == ["int64[n,t]"]
    assert [v.type for v in again.outputs] == [v.type for v in first.outputs]
    assert same(again.run(ids_of(2, 7)), wanted[7]) and again.is_stored
    assert same(again.run(ids_of(2, 7)), wanted[7]) and again.is_stored
    for n in (3, 40, 7):
        assert same(again.run(ids_of(2, n)), wanted[n]) and not again.is_stored
    assert len(entries(folder)) == 1


def test_a_stored_session_of_open_shapes_answers_everything(open_model, opened):
    first = opened(open_model)
    feeds = ids_of(2, 7)
    wanted = first.run(feeds)
    (name,) = wanted
    one = opened(open_model)
    assert one.is_stored and one.stages == () and one.has_open_shapes
    asked = {
        "stages": lambda s: s.stages,
        "graph": lambda s: str(s.graph),
        "at": lambda s: s.at(feeds).run(feeds)[name].tolist(),
        "stream": lambda s: [each[name].tolist() for each in s.stream([feeds] * 2)],
        "traced": lambda s: s.run_traced(feeds)[0][name].tolist(),
        "contexts": lambda s: s.contexts,
        "devices": lambda s: list(s.devices),
    }
    for what, ask in asked.items():
        one = opened(open_model)
        one.run(feeds)
        assert one.is_stored, what
        assert ask(one) == ask(first), what
        assert same(one.run(feeds), wanted), what
    one, given = opened(open_model), np.zeros_like(wanted[name])
    assert one.run(feeds, out={name: given})[name] is given and (given == wanted[name]).all()


def test_wrong_feeds_of_open_shapes_give_the_errors_of_any_session(open_model, opened):
    first = opened(open_model)
    first.run(ids_of(2, 7))
    for feeds in ({}, {"ids": np.zeros((2, 7), np.float32)}, {"ids": np.zeros(7, np.int64)}):
        said = []
        for session in (first, opened(open_model)):
            with pytest.raises(RunError) as error:
                session.run(feeds)
            said.append(str(error.value))
        assert said[0] == said[1]
    wrong = {"ids": np.full((2, 7), 10)}
    for session in (first, opened(open_model)):
        with pytest.raises(RunError, match="10"):
            session.run(wrong)
    closed = opened(open_model)
    closed.close()
    with pytest.raises(RunError, match="closed"):
        closed.run(ids_of(2, 7))


def test_a_damaged_program_of_open_shapes_is_made_again(open_model, opened, folder, caplog):
    wanted = opened(open_model).run(ids_of(2, 7))
    (entry,) = entries(folder)
    whole = bytearray(entry.read_bytes())
    whole[len(whole) // 2] ^= 1
    entry.write_bytes(whole)
    again = opened(open_model)
    assert not again.is_stored and same(again.run(ids_of(2, 7)), wanted)
    assert len(entries(folder)) == 1 and opened(open_model).is_stored


def test_calls_at_once_of_open_shapes_run_the_stored_program(open_model, opened):
    wanted = {n: opened(open_model).run(ids_of(2, n)) for n in (7, 9)}
    session, wrong = opened(open_model), []

    def work(seed):
        rng = np.random.default_rng(seed)
        for k in range(20):
            n = 9 if k > 15 and rng.random() < 0.3 else 7
            if not same(session.run(ids_of(2, n)), wanted[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    assert session.is_stored
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
