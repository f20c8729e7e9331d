"""Sessions of one model and one set of options hold its weights and code once."""

import os
import threading

import numpy as np
import pytest

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.runtime.session.shared_programs import PROGRAMS

SEED = 20261126


def saved(folder, rows=4):
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("dense")
    y = b.input("x", TensorType((rows, 256), "float32"))
    for k in range(6):
        w = rng.standard_normal((256, 256)).astype(np.float32) / 16
        y = b.add("relu", b.add("matmul", y, b.constant(f"w{k}", w)))
    path = folder / "m.trm"
    trireme.save(b.finish(b.add("neg", y, names=["y"])), path)
    return path, {"x": rng.standard_normal((4, 256)).astype(np.float32)}


def test_sessions_of_a_file_share_program_devices_and_workers(tmp_path):
    path, x = saved(tmp_path)
    options = ExecutionOptions(model_cache=str(tmp_path))
    first = Session(path, execution_options=options)
    others = [Session(path, execution_options=options) for _ in range(3)]
    assert not any(one.is_stored for one in others)
    assert all(one.program is first.program for one in others)
    assert all(one.devices["cpu"] is first.devices["cpu"] for one in others)
    want = first.run(x)["y"]
    first.close()
    for one in others:
        assert np.array_equal(one.run(x)["y"], want)
        with pytest.raises(trireme.RunError, match="closed"):
            first.run(x)
    for one in others:
        one.close()
    assert not PROGRAMS.has(first._key.key)
    with Session(path, execution_options=options) as later:
        assert later.is_stored and np.array_equal(later.run(x)["y"], want)


def test_sessions_of_open_shapes_share_one_program_and_tell_their_own_runs(tmp_path):
    path, x = saved(tmp_path, "n")
    options = ExecutionOptions(model_cache=str(tmp_path))
    with (
        Session(path, execution_options=options) as one,
        Session(path, execution_options=options) as two,
    ):
        want = one.run(x)["y"]
        assert one.ready.runner.program._open is two.ready.runner.program._open
        assert len(one.stages) == 1 and not two.stages
        assert np.array_equal(two.run(x)["y"], want)
        one.close()
        assert np.array_equal(two.run({"x": x["x"][:2]})["y"], want[:2])


def test_other_arguments_and_changed_files_share_nothing(tmp_path):
    path, x = saved(tmp_path)
    options = ExecutionOptions(model_cache=str(tmp_path))
    with (
        Session(path, execution_options=options) as one,
        Session(path, execution_options=options, threads=1) as other,
    ):
        assert other.program is not one.program
        want = one.run(x)["y"]
        saved(tmp_path / ".")
        os.utime(path)
        with Session(path, execution_options=options) as changed:
            assert changed.program is not one.program
            assert np.array_equal(changed.run(x)["y"], want)


def test_stored_sessions_map_their_weights_once(tmp_path):
    path, x = saved(tmp_path)
    options = ExecutionOptions(model_cache=str(tmp_path))
    with Session(path, execution_options=options) as first:
        want = first.run(x)["y"]
    with (
        Session(path, execution_options=options) as one,
        Session(path, execution_options=options) as two,
    ):
        assert one.is_stored and two.is_stored
        assert one._stored.program._entry is two._stored.program._entry
        assert np.array_equal(one.run(x)["y"], want)
        one.close()
        assert np.array_equal(two.run(x)["y"], want)


def test_sessions_that_share_run_at_once_and_open_in_any_thread(tmp_path):
    path, x = saved(tmp_path)
    options = ExecutionOptions(model_cache=str(tmp_path))
    with Session(path, execution_options=options) as first:
        want, errors = first.run(x)["y"], []

        def work():
            try:
                for _ in range(10):
                    with Session(path, execution_options=options) as mine:
                        for _ in range(20):
                            assert np.array_equal(mine.run(x)["y"], want)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors and not any(thread.is_alive() for thread in threads)
        assert PROGRAMS._known[first._key.key].users == 1
