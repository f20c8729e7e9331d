"""Where caches lie and what they trust: a folder of mode 0700, and files that only we can write."""

import logging
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import opencl
import pytest
from commands import save_small

import trireme
from trireme.backend.registry import open_device
from trireme.cost.calibration import load_calibration
from trireme.devices.opencl import pocl
from trireme.model_file.cache import optimised
from trireme.support import disk_cache
from trireme.support.disk_cache import DiskCache
from trireme.support.user_files import cache_folder, calibration_file

X = {"x": np.ones((1, 6, 6, 3), np.float32)}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def kept(folder):
    cache = DiskCache(folder, ".bin", 10)
    cache.store("key", b"data")
    return cache.load("key")


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750, 0o701, 0o500])
def test_a_folder_of_another_mode_is_not_used(folder, mode, caplog):
    assert kept(folder) == b"data"
    folder.chmod(mode)
    assert DiskCache(folder, ".bin", 10).load("key") is None
    folder.chmod(0o700)
    assert kept(folder) == b"data"
    assert f"its mode is {mode:o}, expected 700" in caplog.text


def test_a_folder_of_another_user_is_not_used(folder, monkeypatch, caplog):
    assert kept(folder) == b"data"
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert DiskCache(folder, ".bin", 10).load("key") is None
    assert "it belongs to another user" in caplog.text


@pytest.mark.parametrize("what", ["writable", "link", "pipe"])
def test_a_file_that_others_can_change_is_not_read(folder, what, tmp_path):
    assert kept(folder) == b"data"
    (file,) = folder.iterdir()
    if what == "writable":
        file.chmod(0o666)
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere") if what == "link" else os.mkfifo(file)
    assert DiskCache(folder, ".bin", 10).load("key") is None
    assert kept(folder) == b"data"  # and it is replaced


def test_a_full_disk_is_told_once_and_nothing_is_left(folder, monkeypatch, caplog):
    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    for _ in range(2):
        assert kept(folder) is None
    assert caplog.messages == [f"nothing is cached in {folder}: No space left on device"]
    assert not list(folder.iterdir())


def test_a_process_prunes_a_folder_once_and_then_as_it_stores(folder, monkeypatch):
    """However many caches it opens: a session opens one, and to prune takes as long as files are
    many.
    """
    pruned = []
    prune = disk_cache._prune
    monkeypatch.setattr(disk_cache, "_prune", lambda *args: pruned.append(prune(*args)))
    for number in range(12):
        DiskCache(folder, ".bin", 64).store(str(number), b"data")
    assert len(pruned) == 3  # behind the first, and behind every fifth


@pytest.mark.skipif(os.name != "posix", reason="it forks")
def test_a_forked_child_removes_what_a_killed_writer_left(folder):
    assert kept(folder) == b"data"
    (folder / ".key.bin.0123456789abcdef.tmp").touch(mode=0o600)
    child = os.fork()
    if not child:
        kept(folder)
        os._exit(0)
    os.waitpid(child, 0)
    assert [one.name for one in folder.iterdir()] == ["key.bin"]
    for number in range(100):
        DiskCache(folder, ".bin", 64).store(str(number), b"data")
    assert 64 <= len(list(folder.iterdir())) <= 64 + 5


def use_cpu(model, folder):
    options = {"cpu": {"cache_dir": folder}}
    trireme.Session(
        model, execution_options=trireme.ExecutionOptions(model_cache=None, device_options=options)
    ).close()


def use_opencl(model, folder):
    opencl.need_opencl()
    device = open_device("opencl", cache_dir=folder)
    trireme.Session(
        model, execution_options=trireme.ExecutionOptions(model_cache=None), devices=[device]
    ).close()
    device.close()


def use_models(model, folder):
    optimised(model, folder=folder)


@pytest.mark.parametrize("use", [use_cpu, use_opencl, use_models])
def test_every_cache_refuses_a_folder_that_others_can_write(use, folder, tmp_path, caplog):
    model = save_small(tmp_path / "small.trm")
    use(model, folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.parent.chmod(0o777)
        path.unlink()
    use(model, folder)
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert "its mode is 777" in caplog.text


def test_xdg_cache_home_moves_every_cache(tmp_path, monkeypatch):
    model = save_small(tmp_path / "small.trm")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("TRIREME_CALIBRATION", raising=False)
    with trireme.Session(model) as session:
        session.run(X)
    assert sorted(p.name for p in (tmp_path / "xdg" / "trireme").iterdir()) == ["cpu", "models"]
    assert not (tmp_path / "home").exists()
    assert calibration_file() == tmp_path / "xdg" / "trireme" / "calibration.json"


def test_a_relative_xdg_cache_home_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ("", "caches", "./caches"):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert cache_folder("cpu") == tmp_path / ".cache" / "trireme" / "cpu"


def test_a_user_without_a_home_has_no_caches(tmp_path, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TRIREME_CALIBRATION", raising=False)
    assert cache_folder("cpu") is None and calibration_file() is None
    assert not load_calibration().devices
    with trireme.Session(save_small(tmp_path / "small.trm")) as session:
        session.run(X)


def test_the_api_reads_the_calibration_that_the_variable_names(tmp_path, monkeypatch):
    model, file = save_small(tmp_path / "small.trm"), tmp_path / "mine.json"
    file.write_text("not a calibration")
    monkeypatch.setenv("TRIREME_CALIBRATION", str(file))
    with pytest.raises(trireme.ModelFileError, match=r"mine\.json is not a calibration"):
        trireme.Session(model)


def test_a_calibration_is_named_by_a_text_or_a_path(tmp_path):
    model, file = save_small(tmp_path / "small.trm"), tmp_path / "mine.json"
    trireme.Session(model, calibration=str(tmp_path / "none.json")).close()
    file.write_text("not a calibration")
    for given in (str(file), file):
        with pytest.raises(trireme.ModelFileError, match=r"mine\.json is not a calibration"):
            trireme.Session(model, calibration=given)


RUN_ON_OPENCL = """
import sys, numpy as np, trireme
for _ in range(2):
    with trireme.Session(sys.argv[1], devices=["opencl"]) as session:
        session.run({"x": np.ones((1, 6, 6, 3), np.float32)})
"""


def test_opencl_runs_without_a_home_to_write_to(tmp_path):
    """Neither PoCL nor pyopencl needs it; each cache that keeps nothing says so once."""
    opencl.need_opencl()
    model = save_small(tmp_path / "small.trm")
    (tmp_path / "file").write_text("no folder")
    environment = {**os.environ, "HOME": str(tmp_path / "file")}
    environment.pop("XDG_CACHE_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", RUN_ON_OPENCL, model],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "/opencl/" in line]
    assert len(lines) == 1 and "nothing is cached" in lines[0]


def test_pyopencl_keeps_no_pickled_code(tmp_path):
    """Its own cache of invokers lies in a folder that nothing checks."""
    opencl.need_opencl()
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    model = save_small(tmp_path / "small.trm")
    subprocess.run([sys.executable, "-c", RUN_ON_OPENCL, model], env=environment, check=True)
    assert [path.name for path in (tmp_path / "xdg").iterdir()] == ["trireme"]


def test_pocl_gets_a_private_folder_where_the_given_one_is_open_to_others(tmp_path, monkeypatch):
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "mine"))
    pocl.prepare()
    assert os.environ["POCL_CACHE_DIR"] == str(tmp_path / "mine")
    (tmp_path / "mine").chmod(0o777)
    pocl.prepare()
    made = pathlib.Path(os.environ["POCL_CACHE_DIR"])
    assert made != tmp_path / "mine" and made.stat().st_mode & 0o777 == 0o700


def test_pocl_is_not_opened_where_its_files_have_no_room(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5 << 20))
    with pytest.raises(trireme.DeviceError, match="needs a folder with 32 MiB free") as caught:
        pocl.prepare()
    assert any("5 MiB are free" in fact for fact in caught.value.facts)
    assert caught.value.fix == "set TMPDIR to such a folder"


def test_a_device_without_a_cache_is_still_a_device(tmp_path):
    (tmp_path / "file").write_text("no folder")
    device = open_device("cpu", threads=1, cache_dir=tmp_path / "file" / "cache")
    with trireme.Session(save_small(tmp_path / "small.trm"), devices=[device]) as session:
        assert session.run(X)
    device.close()


@pytest.fixture(autouse=True)
def warnings_seen(caplog):
    caplog.set_level(logging.WARNING)
