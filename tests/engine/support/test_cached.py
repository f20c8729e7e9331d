"""Properties that are computed once: one result for all, and no lock around the computation."""

import threading

import pytest

from trireme.support.cached import cached_property


class Twice:
    def __init__(self, wait=lambda: None):
        self.wait, self.count = wait, 0

    @cached_property
    def made(self):
        """A new object."""
        self.count += 1
        self.wait()
        return object()


def test_it_is_computed_once_for_each_object():
    one, other = Twice(), Twice()
    assert one.made is one.made and one.count == 1 and vars(one)["made"] is one.made
    assert other.made is not one.made and Twice.made.__doc__ == "A new object."
    del one.made
    assert one.made is one.made and one.count == 2


def test_an_error_is_not_kept():
    failing = iter([ValueError("once")])

    def fail():
        for error in failing:
            raise error

    one = Twice(fail)
    with pytest.raises(ValueError, match="once"):
        _ = one.made
    assert one.made is one.made


def test_objects_of_a_class_do_not_wait_for_each_other_and_threads_get_one_result():
    both = threading.Barrier(2)
    one = Twice(lambda: both.wait(20))  # it passes only where both compute at once
    found = []
    threads = [threading.Thread(target=lambda: found.append(one.made)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and found[0] is found[1] is one.made
