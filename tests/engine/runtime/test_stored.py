"""Programs kept from one process to the next: the same bits, used for just what they were made of,
and a session of one answers everything that any other session does.
"""

import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from sweep import sweep
from zoo import zoo_path

import trireme
from trireme.devices.cpu.runtime.pool import StepPool
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.models import stored, stored_program
from trireme.runtime.program.feeds import random_feeds
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.runtime.session.shared_programs import PROGRAMS
from trireme.support.errors import RunError

pytestmark = pytest.mark.usefixtures("no_calibration")

ZOO = (
    "kws_dscnn_f32.tflite",
    "mobilenet_v1_0.25_224_f32.tflite",
    "resnet8_cifar10_int8.tflite",
    "ad01_int8.tflite",
    "ad01_fp32.tflite",
    "deeplabv3_f32.tflite",
    "kws_dscnn_int8.tflite",
    "mobilenet_v2_1.0_224_quant.tflite",
    "resnet8_cifar10_f32.tflite",
    "ssd_mobilenet_v1_quant.tflite",
    "tf2_mobilenet_v2_1.0_224_ptq.tflite",
    "vww_96_float.tflite",
    "vww_96_int8.tflite",
    "yamnet.tflite",
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Sessions share nothing in this process, as those of several processes."""
    monkeypatch.setattr(PROGRAMS, "offer", lambda key, made: None)
    monkeypatch.setattr(stored, "_ENTRIES", Forgets())


class Forgets(dict):
    def get(self, key, default=None):
        return default


@pytest.fixture
def opened(folder):
    """Open a session whose caches are in the folder; all are closed at the end."""
    sessions = []

    def open_one(path, **options):
        how = {"model_cache": folder, "device_options": {"cpu": {"cache_dir": folder}}}
        how |= options.pop("how", {})
        sessions.append(Session(path, execution_options=ExecutionOptions(**how), **options))
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
def model(tmp_path):
    """A product, an activation and a look-up whose indices are fed: a kernel checks them."""
    rng = np.random.default_rng(3)
    b = GraphBuilder("look up")
    ids = b.input("ids", TensorType((5,), "int64"))
    table = b.constant("table", rng.standard_normal((10, 64)).astype(np.float32))
    weights = b.constant("weights", rng.standard_normal((64, 4096)).astype(np.float32))
    rows = b.add("gather", table, ids, axis=0)
    path = tmp_path / "model.trm"
    trireme.save(b.finish(b.add("relu", b.add("matmul", rows, weights))), path)
    return path


FEEDS = {"ids": np.array([0, 3, 9, 3, 1])}


@pytest.mark.parametrize("name", sweep(ZOO, always=ZOO[:4]))
def test_empty_and_full_caches_give_the_same_bits(name, opened, folder):
    path = zoo_path(name)
    first = opened(path, threads=2)
    feeds = random_feeds(first.inputs, seed=1)
    wanted = first.run(feeds)
    again = opened(path, threads=2)
    kernels = first.program.executables[0].kernels.values()
    assert again.is_stored == all("numpy reference" not in kernel for kernel in kernels)
    for session in (again, again, opened(path, threads=2)):
        found = session.run(feeds)
        assert list(found) == list(wanted)
        assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)
    assert [(v.name, v.type) for v in again.inputs] == [(v.name, v.type) for v in first.inputs]
    assert [(v.name, v.type) for v in again.outputs] == [(v.name, v.type) for v in first.outputs]
    assert not first.is_stored
    if name == ZOO[0]:
        assert again.is_stored and len(entries(folder)) == 1


@pytest.mark.parametrize("mmap", [True, False])
def test_weights_that_lie_in_another_order_are_stored(opened, tmp_path, mmap):
    """ONNX keeps weights of a conv as OIHW. Winograd's kernel reads them there where a window has
    no finite values.
    """
    rng = np.random.default_rng(5)
    b = GraphBuilder("conv")
    x = b.input("x", TensorType((1, 28, 28, 64), "float32"))
    w = b.constant("w", rng.standard_normal((64, 3, 3, 64)).astype(np.float32))
    path = tmp_path / "conv.onnx"
    y = b.add("conv", x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1)
    trireme.export(b.finish(y), path)
    first = opened(path, how={"mmap": mmap})
    assert any("winograd" in kernel for kernel in first.kernels()), first.kernels()
    again = opened(path, how={"mmap": mmap})
    assert again.is_stored
    for odd in (0.0, np.inf, np.nan):
        feeds = random_feeds(first.inputs, seed=1)
        for value in feeds.values():
            value.flat[::997] = odd
        (wanted,), (found,) = (list(one.run(feeds).values()) for one in (first, again))
        assert found.tobytes() == wanted.tobytes(), odd


def test_a_stored_session_answers_everything(model, opened):
    first, second = opened(model), opened(model)
    wanted = first.run(FEEDS)
    (output,) = wanted
    given = np.zeros_like(wanted[output])
    assert second.run(FEEDS, out={output: given})[output] is given
    assert (given == wanted[output]).all()
    asked = {
        "graph": lambda s: str(s.graph),
        "placement": lambda s: str(s.placement),
        "plan": lambda s: str(s.plan),
        "text": str,
        "devices": lambda s: list(s.devices),
        "kernels": lambda s: s.kernels(),
        "profile": lambda s: len(s.profile(FEEDS, 1, 0).tasks),
        "stream": lambda s: [one[output].tolist() for one in s.stream([FEEDS] * 2)],
        "traced": lambda s: s.run_traced(FEEDS)[0][output].tolist(),
        "at": lambda s: s.at(FEEDS).run(FEEDS)[output].tolist(),
        "states": lambda s: dict(s.get_state()),
        "unmeasured": lambda s: s.unmeasured,
        "options": lambda s: (str(s.placement_options), s.execution_options.mmap, s.stages),
        "mode": lambda s: (s.runs.chosen, s.dropped),
    }
    for what, ask in asked.items():
        one = opened(model)
        assert one.is_stored, what
        assert ask(one) == ask(first), what
        assert (one.run(FEEDS)[output] == wanted[output]).all(), what
        assert not hasattr(one, "no_such_thing")


def test_wrong_feeds_and_data_give_the_errors_of_any_session(model, opened):
    first, second = opened(model), opened(model)
    assert second.is_stored
    bad = [{}, {"ids": FEEDS["ids"], "y": 1}, {"ids": FEEDS["ids"][:3]}, {"ids": [[1.5]]}, None]
    bad += [{"ids": np.array([0, 1, 10, 1, 1])}, {"ids": np.array([0, 1, 1, -11, 1])}]
    for feeds in bad:
        errors = []
        for session in (first, second):
            with pytest.raises(RunError) as caught:
                session.run(feeds)
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
        (found,), (right,) = second.run(FEEDS).values(), first.run(FEEDS).values()
        assert found.tobytes() == right.tobytes()
    assert second.is_stored
    second.close()
    with pytest.raises(RunError, match="closed"):
        second.run(FEEDS)


def test_a_run_that_was_stopped_tells_the_next_one_nothing(model, opened, monkeypatch):
    """It noted a wrong index, and was stopped before anybody read the note."""
    plain, stops = StepPool.bind, []

    def bind(pool, call):
        run = plain(pool, call)

        def stopping():
            run()
            if stops:
                raise stops.pop()

        return stopping

    monkeypatch.setattr(StepPool, "bind", bind)
    wrong = {"ids": np.array([0, 1, 10, 1, 1])}
    sessions = [opened(model), opened(model)]
    assert [one.is_stored for one in sessions] == [False, True]
    for session in sessions:
        session.run(FEEDS)
        stops.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            session.run(wrong)
        session.run(FEEDS)


def test_other_arguments_files_and_code_have_other_programs(model, opened, folder, monkeypatch):
    opened(model, threads=1)
    assert opened(model, threads=1).is_stored
    for options in (
        {"threads": 2},
        {"threads": 1, "how": {"passes_off": ["fuse_activation"]}},
        {"threads": 1, "devices": ["host"]},
        {"threads": 1, "how": {"device_options": {"cpu": {"cache_dir": folder, "isa": "generic"}}}},
    ):
        assert not opened(model, **options).is_stored, options
    assert opened(model, threads=2).is_stored
    with monkeypatch.context() as patched:
        patched.setattr(stored, "code_version", lambda: "another")
        assert not opened(model, threads=1).is_stored
    os.utime(model, ns=(1, 1))
    assert not opened(model, threads=1).is_stored
    assert opened(model, threads=1).is_stored


@pytest.mark.parametrize("how", [{"model_cache": None}, {"execution": "interactive"}])
def test_nothing_is_stored_where_that_is_off_or_tasks_are_many(model, opened, folder, how):
    for _ in range(2):
        assert not opened(model, how=how).is_stored
    assert not entries(folder)


def test_arguments_are_checked_as_ever(model, opened):
    opened(model)
    with pytest.raises(RunError, match="threads is 'two', expected a whole number"):
        opened(model, threads="two")
    with pytest.raises(RunError, match="mode='fast'"):
        opened(model.with_name("other.trm"), mode="fast")
    with pytest.raises(trireme.TriremeError, match="nothing.trm"):
        opened(model.with_name("nothing.trm"))


@pytest.mark.parametrize("place", ["digest", "head", "code", "weights", "end", "empty", "json"])
def test_a_damaged_program_is_made_again(model, opened, folder, place, caplog):
    wanted = opened(model).run(FEEDS)
    (entry,) = entries(folder)
    data = bytearray(entry.read_bytes())
    at = {"digest": 3, "head": 40, "json": 400, "code": 9000, "weights": len(data) - 70_000}
    if place in at:
        data[at[place]] ^= 4
        entry.write_bytes(data)
    else:
        entry.write_bytes(data[: len(data) // 2 if place == "end" else 0])
    session = opened(model)
    assert not session.is_stored
    assert "a damaged file was removed from the cache" in caplog.text
    again = opened(model)
    assert again.is_stored
    for one in (session, again):
        (found,), (right,) = one.run(FEEDS).values(), wanted.values()
        assert found.tobytes() == right.tobytes()


def test_a_program_with_other_contents_is_made_again(model, opened, folder, caplog, monkeypatch):
    """A whole entry whose facts make no sense is refused with a warning, and replaced."""
    opened(model)
    with monkeypatch.context() as patched:
        patched.setattr(stored_program, "_tables", lambda told, data: {})
        session = opened(model)
    assert not session.is_stored and "could not be used" in caplog.text
    assert opened(model).is_stored


def test_a_changed_model_is_not_prepared_in_place_of_the_stored_one(model, opened):
    wanted = opened(model).run(FEEDS)
    session = opened(model)
    assert session.is_stored
    copy = model.with_name("copy.trm")
    shutil.copy(model, copy)
    os.replace(copy, model)
    (found,), (right,) = session.run(FEEDS).values(), wanted.values()
    assert found.tobytes() == right.tobytes()
    with pytest.raises(RunError, match="has changed since the session opened it"):
        _ = session.placement
    assert (next(iter(session.run(FEEDS).values())) == right).all()


def test_threads_may_run_and_prepare_at_once(model, opened):
    wanted = opened(model).run(FEEDS)
    session = opened(model)
    assert session.is_stored
    found, placed = [], []

    def run():
        for _ in range(50):
            found.append(next(iter(session.run(FEEDS).values())))

    threads = [threading.Thread(target=run) for _ in range(2)]
    threads += [threading.Thread(target=lambda: placed.append(session.placement)) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (right,) = wanted.values()
    assert len(found) == 100 and all((one == right).all() for one in found)
    assert placed[0] is placed[1] and not session.is_stored


def test_a_forked_child_runs_it(model, opened):
    opened(model, threads=2)
    session = opened(model, threads=2)
    right = next(iter(session.run(FEEDS).values()))
    assert session.is_stored
    child = os.fork()
    if not child:
        same = (next(iter(session.run(FEEDS).values())) == right).all()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_programs_are_bounded_in_bytes(model, opened, folder, monkeypatch):
    opened(model, threads=1)
    (entry,) = entries(folder)
    monkeypatch.setattr(stored, "MOST_BYTES", entry.stat().st_size * 3 // 2)
    os.utime(entry, (1, 1))
    opened(model, threads=2)
    assert len(entries(folder)) == 1 and entries(folder) != [entry]
    assert opened(model, threads=2).is_stored


def test_a_program_with_very_large_weights_is_not_stored(model, opened, folder, monkeypatch):
    monkeypatch.setattr(stored, "LARGEST_BYTES", 1000)
    opened(model)
    assert not entries(folder) and not opened(model).is_stored


CODE = """
import sys, numpy as np, trireme
session = trireme.Session({path!r}, threads=2)
print(session.run({{"ids": np.arange(5)}})[session.outputs[0].name].sum())
print([name for name in sys.modules if name.startswith(("trireme.ops", "trireme.placement",
      "trireme.devices.cpu.kernels", "trireme.passes", "trireme.converters", "llvmlite"))])
"""


def test_a_process_with_a_stored_program_imports_little(model, tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", CODE.format(path=str(model))]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        for _ in range(2)
    ]
    (first, many), (second, none) = (run.stdout.splitlines() for run in runs)
    assert first == second and many != "[]" and none == "[]"


def test_an_entry_is_written_beside_the_first_runs(model, opened, folder, monkeypatch):
    may_write, store = threading.Event(), stored.MappedCache.store_mapped

    def waiting(self, *entry):
        assert may_write.wait(30)
        store(self, *entry)

    monkeypatch.setattr(stored.MappedCache, "store_mapped", waiting)
    first = opened(model)
    wanted = first.run(FEEDS)
    assert not list(folder.glob("*.program"))
    threading.Timer(0.2, may_write.set).start()
    second = opened(model)  # waits for the entry
    assert second.is_stored and len(entries(folder)) == 1
    assert all((second.run(FEEDS)[name] == array).all() for name, array in wanted.items())


def test_a_session_that_closes_has_written_its_entry(model, folder):
    how = ExecutionOptions(model_cache=folder, device_options={"cpu": {"cache_dir": folder}})
    with Session(model, execution_options=how):
        pass
    assert len(list(folder.glob("*.program"))) == 1
