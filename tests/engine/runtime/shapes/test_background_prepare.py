"""A process that runs several shapes from a stored program prepares the model behind its runs."""

import gc
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from weakref import ref

import pytest
from open_graphs import ids_of, save_words

from trireme.runtime.models import stored as stored_module
from trireme.runtime.models.prepare import Preparation
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session import stored_runner
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

pytestmark = pytest.mark.usefixtures("no_calibration")


@pytest.fixture
def model(tmp_path):
    return save_words(tmp_path / "open.trm")


@pytest.fixture
def stored(model, tmp_path):
    """A session that runs the program which another left at 2 x 7."""
    caches = {"cpu": {"cache_dir": tmp_path / "cache"}}
    how = ExecutionOptions(model_cache=tmp_path / "cache", device_options=caches)
    with Session(model, execution_options=how, threads=2) as first:
        first.run(ids_of(2, 7))
    with Session(model, execution_options=how, threads=2) as session:
        assert session.is_stored
        yield session


def same(found, feeds, model):
    with Session(model.read_bytes(), threads=2) as plain:
        wanted = plain.run(feeds)
    return {k: a.tobytes() for k, a in found.items()} == {k: a.tobytes() for k, a in wanted.items()}


def held(monkeypatch):
    """Have preparing wait until the event that is returned is set."""
    plain, go = Preparation.prepare, threading.Event()

    def prepare(self, model):
        if threading.current_thread().name == "trireme-behind":
            assert go.wait(60)
        return plain(self, model)

    monkeypatch.setattr(Preparation, "prepare", prepare)
    return go


def test_a_second_shape_has_the_model_prepared(stored, model, monkeypatch):
    made, plain = [], Preparation.prepare
    monkeypatch.setattr(
        Preparation,
        "prepare",
        lambda self, model: made.append(threading.current_thread().name) or plain(self, model),
    )
    for shape in ((2, 7), (2, 7), (2, 9)):
        assert stored.behind is None and stored.run(ids_of(*shape))
    stored.behind.wait()
    assert made == ["trireme-behind"] and stored.is_stored
    assert stored.run(ids_of(2, 7)) and stored.is_stored
    assert same(stored.run(ids_of(2, 11)), ids_of(2, 11), model) and not stored.is_stored
    assert same(stored.run(ids_of(2, 7)), ids_of(2, 7), model)
    assert len(made) == 3 and made.count("trireme-behind") == 1  # the two of `same`


def test_storing_gives_free_memory_back(model, tmp_path, monkeypatch):
    """The entry holds the weights again; of a BERT, 60 MiB stayed in the heap when it was gone."""
    asked = []
    monkeypatch.setattr(
        stored_module, "trim_heap", lambda: asked.append(threading.current_thread())
    )
    with Session(model, execution_options=ExecutionOptions(model_cache=tmp_path)) as session:
        session.run(ids_of(2, 7))
        for thread in threading.enumerate():
            if isinstance(thread, stored_module.Storing):
                thread.join()
    assert [thread.name for thread in asked] == ["trireme-store"]


def test_the_stored_program_goes_when_the_model_takes_over(stored):
    """Its weights are mapped from the cache; with those of the model they would be there twice."""
    for n in (7, 8):
        stored.run(ids_of(2, n))
    program, entry, call = map(
        ref,
        (stored._stored.program, stored._stored.program._entry, stored._stored.program._call._pool),
    )
    stored.behind.wait()
    with ThreadPoolExecutor(3) as callers:
        runs = [callers.submit(stored.run, ids_of(1 + n % 2, 9 + n)) for n in range(12)]
    assert all(run.result() for run in runs) and not stored.is_stored
    gc.collect()
    assert (program(), entry(), call()) == (None, None, None)
    assert stored.run(ids_of(2, 7))


def test_the_memory_of_other_shapes_is_given_back(stored):
    program = stored._stored.program
    for n in (7, 8):
        stored.run(ids_of(2, n))
    (other,) = map(ref, program._others.values())
    stored.behind.wait()
    stored.run(ids_of(2, 9))
    assert not stored.is_stored and other() is None


def test_the_stored_program_stays(stored, tmp_path):
    (entry,) = (tmp_path / "cache").glob("*.program")
    before = entry.stat().st_mtime_ns
    for n in (7, 8, 9):
        stored.run(ids_of(2, n))
        if stored.behind is not None:
            stored.behind.wait()
    stored.close()
    assert not stored.is_stored and entry.stat().st_mtime_ns == before


def test_one_shape_has_nothing_prepared(stored):
    for _ in range(3):
        stored.run(ids_of(3, 5))
    assert stored.behind is None and stored.is_stored


def test_runs_go_on_meanwhile(stored, model, monkeypatch):
    go = held(monkeypatch)
    for n in (7, *range(8, 30)):
        assert same(stored.run(ids_of(2, n)), ids_of(2, n), model) and stored.is_stored
    go.set()
    assert stored.graph.name == "open"  # waits for the thread
    assert not stored.is_stored and same(stored.run(ids_of(2, 40)), ids_of(2, 40), model)


def test_a_session_that_closes_waits(stored, monkeypatch):
    go = held(monkeypatch)
    stored.run(ids_of(2, 7))
    stored.run(ids_of(2, 8))
    threading.Timer(0.2, go.set).start()
    stored.close()
    assert not [t for t in threading.enumerate() if t.name == "trireme-behind"]
    with pytest.raises(RunError, match="closed"):
        stored.run(ids_of(2, 7))


def test_what_fails_behind_is_said_when_it_is_needed(stored, model, caplog):
    stored.run(ids_of(2, 7))
    model.write_bytes(b"TRM1" + bytes(60))
    with caplog.at_level(logging.INFO):
        stored.run(ids_of(2, 8))
        stored.behind.wait()
    assert "not prepared behind" in caplog.text
    assert stored.run(ids_of(2, 9)) and stored.is_stored
    with pytest.raises(RunError, match="has changed"):
        _ = stored.graph


FORKS = """
import os, sys, numpy as np, trireme
session = trireme.Session({path!r}, threads=2)
ids = lambda n: {{"ids": np.full((2, n), 3)}}
wanted = [session.run(ids(n))[session.outputs[0].name].tobytes() for n in (7, 9)]
assert session.is_stored and session.behind is not None
child = os.fork()
if not child:
    again = [session.run(ids(n))[session.outputs[0].name].tobytes() for n in (7, 9)]
    assert again == wanted and session.run(ids(33)) and session.graph.name == "open"
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_that_is_forked_meanwhile_runs(model, tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with_shape = "import sys, numpy as np, trireme\n"
    first = with_shape + (
        f"trireme.Session({str(model)!r}, threads=2).run({{'ids': np.zeros((2, 7), np.int64)}})"
    )
    for code in (first, FORKS.format(path=str(model))):
        done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=120)
        assert done.returncode == 0


def test_the_thread_is_waited_for_before_a_fork(monkeypatch):
    ended = []
    go = threading.Event()

    class Closable:
        def close(self):
            ended.append("closed")

    behind = stored_runner.BackgroundPreparation(lambda: go.wait(60) and Closable())
    threading.Timer(0.1, go.set).start()
    child = os.fork()
    if not child:
        os._exit(0 if behind.is_ready else 1)
    assert os.waitpid(child, 0)[1] == 0
    behind.close()
    assert ended == ["closed"]
