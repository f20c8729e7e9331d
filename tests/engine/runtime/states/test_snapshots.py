"""Snapshots of states: of every kind, in a file and back."""

import numpy as np
import pytest

from trireme import ModelFileError, RunError, Session
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.states.held import StateSnapshot
from trireme.support.dtypes import numpy_dtype


def sums(dtype="float32"):
    """Two running sums of x, of which `early` lags by a run."""
    b = GraphBuilder("sums")
    x = b.input("x", TensorType((3,), dtype))
    zero = b.constant("zero", np.zeros(3, numpy_dtype(dtype)))
    late = b.add("variable", zero, state="late")
    b.add("assign", late, state="early")
    y = b.add("add", late, x, names=["y"])
    b.add("assign", y, state="late")
    return b.finish(y)


def of(number, dtype="float32"):
    return {"x": np.full(3, number).astype(numpy_dtype(dtype))}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "float16"])
def test_a_snapshot_goes_through_a_file(tmp_path, dtype):
    with Session(sums(dtype)) as session:
        for number in (1, 2):
            session.run(of(number, dtype))
        state = session.get_state()
        assert {name: array.tolist() for name, array in state.items()} == {
            "early": [1, 1, 1],
            "late": [3, 3, 3],
        }
        state.save(tmp_path / "state.npz")
        session.run(of(5, dtype))
        assert state["late"].tolist() == [3, 3, 3]
    with Session(sums(dtype)) as other:
        other.set_state(tmp_path / "state.npz")
        assert other.run(of(1, dtype))["y"].tolist() == [4, 4, 4]
        other.reset()
        assert other.run(of(1, dtype))["y"].tolist() == [1, 1, 1]


def test_states_that_are_not_named_become_initial():
    with Session(sums()) as session:
        session.run(of(1))
        session.set_state({"early": np.ones(3, np.float32)})
        assert session.get_state()["late"].tolist() == [0, 0, 0]
        assert session.run(of(2))["y"].tolist() == [2, 2, 2]


def test_nothing_changes_where_one_state_does_not_fit():
    with Session(sums()) as session:
        session.run(of(1))
        wrong = {"early": np.ones(3, np.float32), "late": np.ones(4, np.float32)}
        with pytest.raises(RunError, match=r"state 'late' is float32\[4\], expected float32\[3\]"):
            session.set_state(wrong)
        assert session.get_state()["early"].tolist() == [0, 0, 0]


def test_states_wait_for_the_end_of_a_stream():
    with Session(sums()) as session, session.stream([of(1)] * 4) as stream:
        next(stream)
        for change in (session.reset, session.get_state, lambda: session.set_state({})):
            with pytest.raises(RunError, match="a stream of this session is under way: states"):
                change()
        assert len(list(stream)) == 3
        stream.close()
        assert session.get_state()["late"].tolist() == [4, 4, 4]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_no_snapshot_is_an_error(tmp_path, content):
    path = tmp_path / "state.npz"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"state\.npz: no file of states"):
        StateSnapshot.load(path)
    with pytest.raises(ModelFileError, match="no file of states"):
        StateSnapshot.load(tmp_path / "none.npz")


def test_a_damaged_snapshot_is_an_error(tmp_path):
    """Any byte changed: the same arrays, others that are checked later, or an error."""
    path = tmp_path / "state.npz"
    StateSnapshot({"a": np.arange(6), "b": np.ones((2, 3), np.float32)}).save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(7)
    for at in rng.integers(0, len(whole), 200):
        path.write_bytes(
            whole[:at] + bytes([whole[at] ^ int(rng.integers(1, 256))]) + whole[at + 1 :]
        )
        try:
            StateSnapshot.load(path)
        except ModelFileError:
            continue


def test_a_snapshot_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(ModelFileError, match="cannot be written"):
        StateSnapshot({}).save(tmp_path / "none" / "state.npz")
