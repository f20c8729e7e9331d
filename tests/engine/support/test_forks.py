"""A fork waits for threads that end soon, whatever these threads need."""

import os
import subprocess
import sys
import threading

import pytest

from trireme.runtime.session.stored_runner import BackgroundPreparation
from trireme.support import forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

POOL = """
import os, threading, time
from trireme.support.forks import wait_before_fork

class Awaited:
    def __init__(self):
        self.begun = threading.Event()
        self.thread = threading.Thread(target=self.work)
        wait_before_fork(self)
        self.thread.start()

    def work(self):
        from concurrent.futures import ThreadPoolExecutor
        self.begun.set()
        time.sleep(0.2)  # the fork begins meanwhile
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()

    def before_fork(self):
        self.thread.join(20)

one = Awaited()
one.begun.wait()
child = os.fork()
if not child:
    os._exit(0 if not one.thread.is_alive() else 1)
print(os.waitpid(child, 0)[1], one.thread.is_alive())
"""


def test_a_thread_that_a_fork_waits_for_may_use_thread_pools():
    """Their module takes its lock before a fork, and must do so after the wait."""
    done = subprocess.run([sys.executable, "-c", POOL], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0 False\n", "")


LLVM = """
import os, signal, threading
import llvmlite.binding as llvm
from trireme.devices.cpu.codegen.target import start_llvm

start_llvm()
held, ended = threading.Event(), threading.Event()

def work():
    with llvm.ffi.lib._lock:
        held.set()
        ended.wait(0.3)

threading.Thread(target=work).start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    llvm.get_default_triple()
    os._exit(0)
print(os.waitpid(child, 0)[1], llvm.get_default_triple() != "")
"""


def test_a_child_may_compile_though_a_thread_of_its_parent_was_in_llvm():
    done = subprocess.run([sys.executable, "-c", LLVM], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0 True\n", "")


def test_a_fork_waits_for_a_thread_that_has_yet_to_start(monkeypatch):
    start, wrong, done = threading.Thread.start, [], threading.Event()

    def fork_first(thread):
        if thread.name != "trireme-behind":
            return start(thread)
        fork = threading.Thread(target=before_fork)
        start(fork)
        fork.join(0.05)
        assert fork.is_alive(), "the fork did not wait"
        start(thread)
        fork.join(20)
        return done.set()

    def before_fork():
        try:
            forks._before()
        except RuntimeError as error:
            wrong.append(error)
        finally:
            forks._in_parent()  # else LLVM's lock stays taken

    class Opened:
        def close(self):
            pass

    monkeypatch.setattr(threading.Thread, "start", fork_first)
    behind = BackgroundPreparation(Opened)
    assert done.is_set() and not wrong
    behind.close()
