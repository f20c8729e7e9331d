"""Locks and latches that no signal leaves in a state that others wait for."""

import signal
import threading
import time

from trireme.support.locks import Latch


def test_a_latch_opens_for_all_and_for_good():
    latch, passed = Latch(), []

    def wait(number):
        latch.wait()
        passed.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    assert not latch.is_open and not passed
    latch.open()
    for thread in threads:
        thread.join(10)
    latch.wait()
    assert latch.is_open and sorted(passed) == list(range(8))


class _Stop(Exception):
    pass


def test_a_wait_that_a_signal_ends_leaves_the_latch_to_others():
    """A handler that raises at any moment of 200 waits: opening never blocks."""

    def stop(number, frame):
        raise _Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        for turn in range(200):
            latch = Latch()
            opener = threading.Timer(2e-4, latch.open)
            opener.start()
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + turn * 2e-6)
                for _ in range(50):
                    latch.wait()
                time.sleep(0.01)
            except _Stop:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            opener.join(10)
            assert not opener.is_alive() and latch.is_open
            latch.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
