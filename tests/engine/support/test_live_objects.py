"""Objects held weakly: they are gone when others let go, and no Python code runs for that."""

import sys

from trireme.support.live_objects import LiveObjects


class One:
    pass


def test_what_lives_is_held_once():
    objects, one, other = LiveObjects(), One(), One()
    for each in (one, other, one):
        objects.add(each)
    assert len(list(objects)) == 2
    assert set(objects) == {one, other}
    del other, each
    assert list(objects) == [one]


def test_an_object_that_ends_runs_no_python_code():
    objects, called = LiveObjects(), []
    held = [One() for _ in range(3)]
    for one in held:
        objects.add(one)
    del one
    sys.setprofile(lambda frame, event, _: event == "call" and called.append(frame.f_code))
    try:
        held.clear()
    finally:
        sys.setprofile(None)
    assert not called
    assert not list(objects)


def test_objects_may_end_while_others_are_looked_at():
    objects, held = LiveObjects(), [One() for _ in range(5)]
    for one in held:
        objects.add(one)
    seen = []
    for one in objects:
        seen.append(id(one))
        held.clear()
    assert len(seen) == 1
