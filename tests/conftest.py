"""Fixtures that several test files share."""

import gc
import importlib.util
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict

import pytest
from zoo import zoo_path

HERE = pathlib.Path(__file__).parent
LONG = {
    HERE / "converters/onnx/test_models.py",
    HERE / "converters/onnx/test_node.py",
    HERE / "devices/cpu/test_kernels.py",
    HERE / "devices/opencl/test_kernels.py",
    HERE / "engine/passes/test_models.py",
    HERE / "engine/placement/test_explain.py",
    HERE / "engine/placement/test_search.py",
    HERE / "engine/placement/test_shards.py",
    HERE / "engine/plan/test_plan.py",
    HERE / "whole/test_end_to_end.py",
    HERE / "whole/test_fuzz_onnx.py",
}
"""Files of which one that began last would leave the other workers idle."""
LATE = "sweeps no longer begin"
"""Why a sweep was skipped on a slow machine."""


def pytest_configure(config):
    """Give a run a home of its own, which xdist's workers share: caches begin empty.

    Two folders outlive it: object code, whose key is the text of what generates it, and Python's
    bytecode, so that all processes compile each module once. They are in TRIREME_TEST_CACHE, else
    in this user's cache folder. TRIREME_TEST_HOME names a whole home to use and to keep.
    """
    if hasattr(config, "workerinput"):
        keep_bytecode()
        return
    kept = os.environ.get("TRIREME_TEST_HOME")
    home = pathlib.Path(kept or tempfile.mkdtemp(prefix="trireme-tests-"))
    home.mkdir(parents=True, exist_ok=True)
    bytecode = home / "bytecode"
    if not kept:
        bytecode = outlast(home)
        config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    os.environ |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    os.environ["PYTHONPYCACHEPREFIX"] = str(bytecode)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    keep_bytecode()


def outlast(home):
    """Link the cpu's object code of a home to a folder that is kept; return that of bytecode."""
    from trireme.support.user_files import cache_folder

    given = os.environ.get("TRIREME_TEST_CACHE")
    kept = pathlib.Path(given).absolute() if given else cache_folder("tests")
    if kept is None:
        return home / "bytecode"
    code, link = kept / "cpu", home / ".cache" / "trireme" / "cpu"
    code.mkdir(mode=0o700, parents=True, exist_ok=True)
    link.parent.mkdir(mode=0o700, parents=True)
    link.symlink_to(code, target_is_directory=True)
    return kept / "bytecode"


def keep_bytecode():
    """Keep the bytecode of this process too: pytest rewrites the asserts of 430 files."""
    sys.pycache_prefix, sys.dont_write_bytecode = os.environ["PYTHONPYCACHEPREFIX"], False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file's tests stay together: they share fixtures, and answers of the reference.

    Files begin in the order of collection; xdist would leave those of few tests to the end.
    """
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


def pytest_make_parametrize_id(val, argname):
    """Bytes name no case: what a compressor makes holds the time, and xdist's workers would differ.

    Then a worker that takes the place of one that crashed could not go on.
    """
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish():
    """Spare the collector of garbage some 11,000 tests: they live as long as the run."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Sweeps and further instruction sets, which are chosen here, are slow. Long files first."""
    sweep_isas(items)
    items.sort(key=lambda item: item.path not in LONG)
    for item in items:
        if item.get_closest_marker("sweep") or item.get_closest_marker("isas"):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Begin no sweep after TRIREME_TEST_SWEEPS_UNTIL, seconds of the epoch."""
    until = os.environ.get("TRIREME_TEST_SWEEPS_UNTIL")
    if until and time.time() > float(until) and item.get_closest_marker("sweep"):
        pytest.skip(LATE)


def pytest_terminal_summary(terminalreporter):
    """Name the files of which sweeps were left out."""
    late = [one for one in terminalreporter.stats.get("skipped", ()) if LATE in str(one.longrepr)]
    if late:
        terminalreporter.section("sweeps left out")
        for path, count in Counter(one.nodeid.split("::")[0] for one in late).most_common():
            terminalreporter.line(f"{count:5} {path}")
        terminalreporter.line(f"{len(late)} cases: {LATE}")


def sweep_isas(items):
    """Mark `isas`, of tests on the `cpus` with an `isa` each, all but those of `isas_for`."""
    from cpu_run import isas_for

    cases = defaultdict(list)
    for item in items:
        isa = item.callspec.params.get("isa") if hasattr(item, "callspec") else None
        if isinstance(isa, str) and "cpus" in item.fixturenames:  # pytest's own mark for none
            cases[item.nodeid.replace(isa, "", 1)].append((isa, item))
    for case, members in cases.items():
        kept = isas_for(case, [isa for isa, _ in members])
        for isa, item in members:
            if isa not in kept:
                item.add_marker(pytest.mark.isas)


@pytest.fixture(autouse=True)
def loggers_stay():
    """Fail what leaves all loggers at another level: later tests would miss warnings."""
    level = logging.root.level
    yield
    after = logging.root.level
    logging.root.setLevel(level)
    assert after == level, f"the level of all loggers is {after} after the test"


@pytest.fixture(scope="session")
def made_models(tmp_path_factory) -> pathlib.Path:
    """The folder of make_onnx.py's models: TRIREME_ONNX_MODELS, else made here with torch."""
    if "TRIREME_ONNX_MODELS" in os.environ:
        return pathlib.Path(os.environ["TRIREME_ONNX_MODELS"])
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed and TRIREME_ONNX_MODELS is not set")
    folder = tmp_path_factory.mktemp("onnx")
    subprocess.run([sys.executable, zoo_path("make_onnx.py"), folder], check=True)
    return folder


@pytest.fixture
def own_registry(monkeypatch):
    """Registries of devices and ops whose additions are gone after the test."""
    from trireme.backend import registry
    from trireme.ir import op

    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
    monkeypatch.setattr(op, "_OPS", dict(op._OPS))


@pytest.fixture
def no_calibration(monkeypatch, tmp_path):
    """Nothing is known of this machine."""
    monkeypatch.setenv("TRIREME_CALIBRATION", str(tmp_path / "calibration.json"))


@pytest.fixture(scope="session")
def cpus():
    """A cpu device for every instruction set of this machine with 1 and 2 threads, by both."""
    from cpu_run import open_all

    made = open_all()
    yield made
    for device in made.values():
        device.close()


@pytest.fixture(scope="module")
def devices():
    """The devices that can be opened here, by name."""
    from forced import open_all

    opened, absent = open_all()
    if absent:
        print("absent:", absent)
    yield opened
    for device in opened.values():
        device.close()
