"""Caches on broken disks: sessions open with the same results, and nothing half-written is read."""

import errno
import fcntl
import json
import logging
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from lab import child_environment
from lab.stress import cache_crashes

import trireme
from trireme.runtime.models import stored
from trireme.support import atomic
from trireme.support.cache_events import cache_events
from trireme.support.disk_cache import DiskCache, open_own
from trireme.support.mapped_cache import MappedCache

SEED = 15


@pytest.fixture
def home(tmp_path):
    """A folder with a model, and caches that a session filled."""
    trireme.save(cache_crashes.model(0), tmp_path / "m.trm")
    return tmp_path


@pytest.fixture(autouse=True)
def apart(monkeypatch, caplog):
    """Sessions share nothing in this process, as those of several processes."""
    from trireme.runtime.session.shared_programs import PROGRAMS

    monkeypatch.setattr(PROGRAMS, "offer", lambda key, made: None)
    monkeypatch.setattr(stored, "_ENTRIES", {})
    caplog.set_level(logging.INFO)


def bits(home):
    stored._ENTRIES.clear()
    return cache_crashes.run(home).tobytes()


def files(home):
    return sorted(path for path in (home / "caches").rglob("*") if path.is_file())


def crash(what, folder, count):
    command = [
        sys.executable,
        "-m",
        cache_crashes.__name__,
        what,
        str(folder),
        str(SEED),
        str(count),
    ]
    done = subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("count", [8, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_call_of_the_system_may_fail(tmp_path, count):
    told = crash("fail", tmp_path, count)
    print("seed", SEED, told)
    assert told["cases"] == min(count, told["calls"]) and told["calls"] > 25


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_a_killed_writer_leaves_whole_files_alone(tmp_path, count):
    """Killed while models, kernels, graphs and programs are written, at a call and at a time."""
    told = crash("kill", tmp_path, count)
    print("seed", SEED, told)
    assert told["killed"] >= count // 2 and told["calls"] > 20 and told["left"] == []


@pytest.mark.parametrize("most", [0, 100, 900, 3000, 40_000])
def test_a_disk_that_fills_while_a_file_is_written(home, most, caplog):
    """Real short writes: the limit of a file's size stands for the full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        found = bits(home)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert all(path.stat().st_size <= most for path in files(home))
    assert "nothing is cached in" in caplog.text and "File too large" in caplog.text
    assert found == bits(home) == bits(home)
    assert {path.suffix for path in files(home)} == {".graph", ".o", ".program"}


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("kib", [4, 64, 512])
def test_a_small_disk_that_is_full(home, kib):
    disk = home / "caches"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=0700", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        found = bits(home), bits(home)
        assert not [path for path in files(home) if path.suffix in (".program", ".tmp")]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert found == (bits(home),) * 2


def damage(path, how, rng, elsewhere):
    """Do something to a file; return whether its bytes cannot be used any more."""
    data = bytearray(path.read_bytes())
    if how == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    elif how == "flip":
        data[rng.randrange(len(data) * 9 // 10)] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif how == "zeros":  # what a power failure leaves
        path.write_bytes(bytes(len(data)))
    elif how == "other user":
        os.chown(path, 12345, -1)
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "pipe":
            os.mkfifo(path)
        else:
            elsewhere.write_bytes(data)
            path.symlink_to(elsewhere)


def remove_programs(home):
    for path in files(home):
        if path.suffix == ".program":
            path.unlink()


HOW = ("cut", "cut", "flip", "flip", "zeros", "other user", "folder", "pipe", "link")


@pytest.mark.parametrize("suffix", [".graph", ".o", ".program"])
def test_damaged_and_foreign_entries_are_made_again(home, suffix, caplog):
    print("seed", SEED)
    rng = random.Random(SEED)
    right = bits(home)
    for how in HOW:
        if how == "other user" and os.getuid():
            continue
        if suffix != ".program":  # which would spare the session the others
            remove_programs(home)
        bits(home)
        if suffix != ".program":
            remove_programs(home)
        path = rng.choice([one for one in files(home) if one.suffix == suffix])
        caplog.clear()
        before = cache_events()
        damage(path, how, rng, home / "elsewhere")
        assert bits(home) == right, how
        if how == "folder":
            assert "nothing is cached in" in caplog.text
            path.rmdir()
        elif how in ("cut", "flip", "zeros", "other user"):
            expected = "foreign" if how == "other user" else "damaged"
            key = suffix[1:], expected
            assert cache_events()[key] > before.get(key, 0), how
            assert "was removed from the cache" in caplog.text, how
        assert bits(home) == right, how


def test_an_unwritable_folder_is_bypassed(home, caplog):
    right = bits(home)
    before = cache_events().get(("graph", "unwritable"), 0)
    shutil.rmtree(home / "caches")
    (home / "caches").write_text("a file")
    assert bits(home) == right and "nothing is cached in" in caplog.text
    (home / "caches").unlink()
    assert cache_events().get(("graph", "unwritable"), 0) == before


def test_the_files_used_last_stay_within_the_limit_of_bytes(tmp_path):
    cache = DiskCache(tmp_path / "c", ".x", 1000, most_bytes=100_000)
    for number in range(60):
        cache.store(str(number), bytes(5000))
        os.utime(tmp_path / "c" / f"{number}.x", (number, number))
        assert sum(path.stat().st_size for path in (tmp_path / "c").iterdir()) <= 112_000
    assert cache.load("59") and cache.load("0") is None


def test_the_limit_of_a_number_of_files(tmp_path):
    cache = DiskCache(tmp_path / "c", ".x", 32)
    for number in range(100):
        cache.store(str(number), b"data")
        os.utime(tmp_path / "c" / f"{number}.x", (number, number))
        assert len(list((tmp_path / "c").iterdir())) <= 35
    mapped = MappedCache(tmp_path / "c", ".y", 10, 1 << 20)
    for number in range(3):
        mapped.store_mapped(str(number), b"head", [np.zeros(1 << 19, np.uint8)])
        os.utime(tmp_path / "c" / f"{number}.y", (number, number))
    assert mapped.load_mapped("2") and mapped.load_mapped("0") is None


def test_a_folder_in_place_of_an_entry_costs_no_descriptor(tmp_path):
    (tmp_path / "entry").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert open_own(tmp_path / "entry") is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_under_way_are_removed_once_their_writer_is_gone(tmp_path):
    target = tmp_path / "m.trm"
    with atomic._new_file(target, 0o600) as file:
        (under_way,) = tmp_path.iterdir()
        file.write(b"half")
        atomic.remove_abandoned(tmp_path)
        atomic.remove_abandoned(tmp_path, "m.trm")
        assert under_way.exists()
    assert target.read_bytes() == b"half" and not under_way.exists()
    for name in (".m.trm.0123456789abcdef.tmp", ".other.trm.0123456789abcdef.tmp"):
        (tmp_path / name).write_bytes(b"abandoned")
    trireme.save(cache_crashes.model(0), target)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".other.trm.0123456789abcdef.tmp",
        "m.trm",
    ]


def test_a_remover_that_comes_before_the_lock_harms_nothing(tmp_path, monkeypatch):
    """A file may be unlinked or locked between its making and the writer's lock."""
    flock, raced = fcntl.flock, []

    def late(handle, how):
        (found,) = tmp_path.glob("*.tmp") if not raced else (None,)
        if found is not None:
            raced.append(found)
            found.unlink()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    atomic.replace_file(tmp_path / "a", [b"whole"])
    assert raced and [path.name for path in tmp_path.iterdir()] == ["a"]

    def without(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    atomic.replace_file(tmp_path / "a", [b"again"])
    assert (tmp_path / "a").read_bytes() == b"again"


def test_many_writers_of_one_entry_leave_one(tmp_path):
    caches = [DiskCache(tmp_path / "c", ".x", 100) for _ in range(4)]
    found = []

    def work(cache, number):
        for _ in range(50):
            cache.store("key", bytes([number]) * 5000)
            found.append(cache.load("key"))

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(caches, range(4), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 200
    assert all(one is not None and one == one[:1] * 5000 for one in found)
    assert [path.name for path in pathlib.Path(tmp_path / "c").iterdir()] == ["key.x"]


def test_an_entry_that_takes_long_to_write_is_waited_for_so_long(home, monkeypatch, caplog):
    release = threading.Event()
    monkeypatch.setattr(stored, "MOST_WAIT_S", 0.2)
    monkeypatch.setattr(stored.MappedCache, "store_mapped", lambda *args: release.wait(30))
    try:
        assert bits(home) == bits(home)
        assert "is not written after 0.2 s" in caplog.text
    finally:
        release.set()
