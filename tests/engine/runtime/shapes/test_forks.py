"""Children of a process that forks while its threads run, prepare and compile open shapes."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import AS_GIVEN, ExecutionOptions
from trireme.runtime.session.session import Session

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
FORKS, MOST_S = 12, 30.0
W = np.random.default_rng(0).integers(-3, 4, (6, 6)).astype(np.float32)


def product():
    """Return the graph of y = relu(x @ w) over x [n, m, 6]."""
    b = GraphBuilder("product")
    x = b.input("x", TensorType(("n", "m", 6), "float32"))
    made = b.add("matmul", x, b.constant("w", W))
    return b.finish(b.add("relu", made, names=["y"]))


def fed(number):
    """Return whole numbers of the shape of a number, for exact results."""
    shape = (1 + number % 7, 1 + number // 7 % 11, 6)
    return np.random.default_rng(number).integers(-4, 5, shape).astype(np.float32)


def is_right(session, number):
    x = fed(number)
    return np.array_equal(session.run({"x": x})["y"], np.maximum(x @ W, 0))


def end_of_child(work):
    """Fork, and return the status of a child that ends well where `work` returns True."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(int(MOST_S))  # a child that hangs is a signal
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    "how",
    [
        AS_GIVEN,
        ExecutionOptions(most_shapes=2, model_cache=None),
        ExecutionOptions(schedule="dynamic", model_cache=None),
    ],
    ids=["as given", "two shapes", "dynamic"],
)
def test_children_run_shapes_while_threads_of_the_parent_make_others(how):
    ended, wrong = threading.Event(), []
    with Session(product(), threads=1, execution_options=how) as session:
        assert is_right(session, 76)  # a child never gets a module that another thread imports

        def busy(first):
            number = first
            while not ended.is_set():
                if not is_right(session, number % 77):
                    wrong.append(number)
                number += 1

        threads = [threading.Thread(target=busy, args=(first,)) for first in (0, 40)]
        for one in threads:
            one.start()
        try:
            for fork in range(FORKS):
                time.sleep(0.003 * fork)
                numbers = range(5 * fork, 5 * fork + 6)
                end = end_of_child(lambda: all(is_right(session, n) for n in numbers))  # noqa: B023
                assert end == 0, (fork, end)
        finally:
            ended.set()
            for one in threads:
                one.join()
        assert not wrong


def test_a_child_of_a_process_that_prepares_shapes_prepares_its_own():
    with Session(product(), threads=1, execution_options=AS_GIVEN) as session:
        shapes = [{"x": (n, 3, 6)} for n in range(1, 9)]
        session.prepare(shapes)

        def child():
            states = {one.state for one in session.prepared}
            session.prepare([{"x": (2, 2, 6)}], wait=True)
            return (
                states <= {"ready", "not made"}
                and session.prepared[-1].state == "ready"
                and is_right(session, 3)
                and session.close() is None
            )

        assert end_of_child(child) == 0
        session.prepare([{"x": (9, 3, 6)}], wait=True)
        assert {one.state for one in session.prepared} == {"ready"}


def test_a_child_takes_locks_that_threads_of_its_parent_held():
    """Whichever lock of the open program a thread held at the fork, the child runs."""
    with Session(product(), threads=1, execution_options=AS_GIVEN) as session:
        assert is_right(session, 1)
        graph = session.ready.runner.program._open
        for lock in (
            graph._making,
            graph._polymorphic.turn,
            session.ready.runner.program.ahead._lock,
        ):
            with lock:
                assert end_of_child(lambda: is_right(session, 30)) == 0
