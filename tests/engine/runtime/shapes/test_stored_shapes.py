"""Programs of open shapes kept from one process to the next: a later process runs a stored program
at the shapes that it was made for and at others, or prepares the model.
"""

import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
from onnx import parser
from open_graphs import ids_of, random_graph, save_words
from programs import HEAD

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.models import stored
from trireme.runtime.models.stored_program import MOST_SHAPES
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session import sized_runner as stored_sizing
from trireme.runtime.session.session import Session
from trireme.runtime.session.shared_programs import PROGRAMS
from trireme.support.errors import RunError, TriremeError

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
    return save_words(tmp_path / "open.trm")


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
        assert same(again.run(ids_of(2, n)), wanted[n]) and again.is_stored
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


ATTENTION = """
attends (int64[b,s] ids, float[60,64] table, float[1,48,64] places, float[64,64] w)
    => (float[b,s,64] y)
{
    zero = Constant <value = int64[1] {0}> ()  one = Constant <value = int64[1] {1}> ()
    rows = Gather(table, ids)  length = Shape <start = 1, end = 2> (ids)
    some = Slice(places, zero, length, one)  x = Add(rows, some)
    q = MatMul(x, w)  k = Transpose <perm = [0, 2, 1]> (x)  scores = MatMul(q, k)
    shares = Softmax <axis = -1> (scores)  mixed = MatMul(shares, x)  y = Add(mixed, rows)
}
"""


@pytest.fixture
def attention(tmp_path):
    """Words and positions, of which there are 48, and an attention; all sizes are open."""
    model = parser.parse_model(HEAD + ATTENTION)
    rng = np.random.default_rng(8)
    given = list(model.graph.input)
    del model.graph.input[1:]
    for value in given[1:]:
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        tensor = model.graph.initializer.add()
        tensor.name, tensor.data_type = value.name, 1
        tensor.dims.extend(dims)
        tensor.raw_data = rng.standard_normal(dims).astype(np.float32).tobytes()
    path = tmp_path / "attention.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_other_shapes_run_from_the_stored_program_with_the_same_bits(attention, opened):
    print("seed 4")
    rng = random.Random(4)
    plain = Session(attention.read_bytes(), threads=2)
    first = opened(attention)
    first.run(ids_of(2, 17))
    shapes = [(rng.randint(1, 6), rng.randint(1, 48)) for _ in range(40)]
    served, session = 0, first
    for shape in shapes:
        session = session if session.is_stored else opened(attention)
        assert same(session.run(ids_of(*shape)), plain.run(ids_of(*shape))), shape
        served += session.is_stored
    assert served > len(shapes) / 2
    plain.close()


def test_random_graphs_run_other_shapes_with_the_same_bits(opened, tmp_path):
    served = 0
    for seed in range(12):
        print("seed", seed)
        rng = np.random.default_rng(seed)
        graph = random_graph(rng)
        path = tmp_path / f"{seed}.trm"
        trireme.save(graph, path)
        (x,) = graph.input_values()
        fed = [
            {x.name: rng.standard_normal((*rng.integers(1, 40, 2), x.shape[-1])).astype("f4")}
            for _ in range(4)
        ]
        plain, first = opened(path.read_bytes()), opened(path)
        first.run(fed[0])
        first.close()
        session = opened(path)
        for feeds in fed[1:]:
            assert same(session.run(feeds), plain.run(feeds))
            served += session.is_stored
    assert served > 9


def test_shapes_that_ran_long_ago_make_room(attention, opened, monkeypatch):
    monkeypatch.setattr(Session, "prepare_behind", lambda self: None)
    plain = Session(attention.read_bytes(), threads=2)
    opened(attention).run(ids_of(1, 20))
    session = opened(attention)
    for n in (*range(9, 9 + 3 * MOST_SHAPES), 9, 10):
        assert same(session.run(ids_of(1, n)), plain.run(ids_of(1, n))) and session.is_stored
        assert len(session._stored.program._others) <= MOST_SHAPES
    plain.close()


def test_shapes_that_the_graph_refuses_are_refused_as_ever(attention, opened):
    first = opened(attention)
    first.run(ids_of(1, 20))
    for session in (first, opened(attention)):
        with pytest.raises(TriremeError, match="do not broadcast"):
            session.run(ids_of(1, 49))
        assert session.run(ids_of(1, 48))


def test_wrong_data_at_another_shape_is_an_error(attention, opened):
    opened(attention).run(ids_of(1, 20))
    session = opened(attention)
    wrong = {"ids": np.full((1, 21), 60)}
    with pytest.raises(RunError, match="60"):
        session.run(wrong)
    assert session.is_stored and session.run(ids_of(1, 21))


@pytest.fixture
def convolutions(tmp_path):
    """Convolutions and a pool of an image whose sizes are open."""
    rng = np.random.default_rng(6)
    b = GraphBuilder("convolutions")
    x = b.input("x", TensorType(("n", "h", "w", 3), "float32"))
    plain = dict(dilations=(1, 1), layout="NHWC")
    w = b.constant("w", rng.standard_normal((16, 3, 3, 3)).astype(np.float32))
    y = b.add("conv", x, w, strides=(2, 2), pads=(0, 0, 1, 1), activation="relu", **plain)
    y = b.add("max_pool", y, kernel=(2, 2), strides=(2, 2), pads=(0,) * 4, **plain)
    w = b.constant("w", rng.standard_normal((8, 1, 1, 16)).astype(np.float32))
    y = b.add("conv", y, w, strides=(1, 1), pads=(0,) * 4, **plain)
    path = tmp_path / "convolutions.trm"
    trireme.save(b.finish(y), path)
    return path


def test_convolutions_run_other_shapes_with_the_same_bits(convolutions, opened):
    print("seed 9")
    rng = np.random.default_rng(9)
    fed = [
        {
            "x": rng.standard_normal((*rng.integers(1, 4, 1), *rng.integers(4, 90, 2), 3)).astype(
                "f4"
            )
        }
        for _ in range(12)
    ]
    plain, served = opened(convolutions.read_bytes()), 0
    opened(convolutions).run(fed[0])
    for feeds in fed[1:]:
        session = opened(convolutions)
        assert same(session.run(feeds), plain.run(feeds))
        served += session.is_stored
    assert served > 8
    small = {"x": np.ones((1, 3, 20, 3), np.float32)}
    for session in (plain, opened(convolutions)):
        with pytest.raises(TriremeError, match="a window of 2 does not fit"):
            session.run(small)


def test_convolutions_of_lines_run_other_shapes_with_the_same_bits(opened, tmp_path):
    print("seed 11")
    rng = np.random.default_rng(11)
    b = GraphBuilder("lines")
    x, plain = b.input("x", TensorType(("n", "t", 8), "float32")), {"layout": "NHWC"}
    for kernel, cin, cout, group in ((3, 8, 16, 1), (15, 1, 16, 16), (1, 16, 4, 1)):
        w = b.constant("w", rng.standard_normal((cout, kernel, cin)).astype(np.float32))
        pads = (kernel // 2,) * 2
        x = b.add("conv", x, w, strides=(1,), dilations=(1,), pads=pads, groups=group, **plain)
    path = tmp_path / "lines.trm"
    trireme.save(b.finish(x), path)
    fed = [{"x": rng.standard_normal((1 + k % 3, 5 + 9 * k, 8)).astype("f4")} for k in range(8)]
    plainly, served = opened(path.read_bytes()), 0
    opened(path).run(fed[0])
    for feeds in fed[1:]:
        session = opened(path)
        assert same(session.run(feeds), plainly.run(feeds))
        served += session.is_stored
    assert served > 5


def test_no_run_waits_for_the_entry(open_model, opened, folder, monkeypatch, caplog):
    go, plain = threading.Event(), stored_sizing.open_entry
    monkeypatch.setattr(stored_sizing, "open_entry", lambda *a: go.wait(60) and plain(*a))
    first = opened(open_model)
    assert first.run(ids_of(2, 7)) and first.run(ids_of(2, 9))
    assert not list(folder.glob("*.program"))
    go.set()
    assert len(entries(folder)) == 1 and opened(open_model).is_stored


def test_an_entry_that_cannot_be_made_is_a_warning(open_model, opened, folder, monkeypatch, caplog):
    def fails(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(stored_sizing, "open_entry", fails)
    first = opened(open_model)
    assert first.run(ids_of(2, 7)) and not entries(folder)
    assert "could not be stored: no room" in caplog.text and first.run(ids_of(2, 8))


BESIDE = """
beside (float[b,s,8] x) => (float[b,s,c] y)
{
    one = Constant <value = int64[1] {64}> ()  none = Constant <value = int64[1] {0}> ()
    step = Constant <value = int64[1] {1}> ()  sizes = Shape <end = 2> (x)
    places = Constant <value = float[1,1,64] {PLACES}> ()
    whole = Concat <axis = 0> (sizes, one)  same = Expand(places, whole)
    y = Concat <axis = -1> (x, same)
}
"""


def test_contents_that_are_equal_along_an_axis_are_stored_once(opened, tmp_path, folder):
    places = ", ".join(str(k / 4) for k in range(64))
    path = tmp_path / "beside.onnx"
    model = parser.parse_model(HEAD + BESIDE.replace("PLACES", places))
    path.write_bytes(model.SerializeToString())
    rng = np.random.default_rng(3)
    feeds = [{"x": rng.standard_normal((b, s, 8)).astype("f4")} for b, s in ((2, 7), (60, 250))]
    first = opened(path)
    wanted = [first.run(one) for one in feeds]
    (entry,) = entries(folder)
    again = opened(path)
    assert same(again.run(feeds[1]), wanted[1]) and again.is_stored
    assert entry.stat().st_size < 200_000  # those of 60 x 250 have 3.8 MB


CODE = """
import sys, numpy as np, trireme
session = trireme.Session({path!r}, threads=2)
session.run({{"ids": np.zeros((1, int(sys.argv[1])), np.int64)}})
print([name for name in sys.modules if name.startswith(("trireme.ops", "trireme.placement",
      "trireme.devices.cpu.kernels", "trireme.passes", "trireme.converters", "llvmlite"))])
"""


def test_a_process_with_another_shape_imports_little(attention, tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", CODE.format(path=str(attention))]
    runs = [
        subprocess.run(
            [*command, rows], capture_output=True, text=True, check=True, env=environment
        )
        for rows in ("20", "21")
    ]
    many, none = (run.stdout.strip() for run in runs)
    assert many != "[]" and none == "[]"
