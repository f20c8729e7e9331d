"""Objects held weakly: they are gone when others let go, and no Python code runs for that."""

import sys

from trireme.support.live_objects import LiveKeys, LiveObjects, LiveValues


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


def test_values_live_as_long_as_others_hold_them():
    values, one, other = LiveValues(), One(), One()
    values["one"], values["other"] = one, other
    assert values.get("one") is one and values.get("none") is None
    del one
    assert values.get("one") is None and values.get("other") is other
    values["third"] = other
    assert list(values._references) == ["other", "third"]


def test_values_of_keys_go_with_the_keys():
    values, one, other, called = LiveKeys(), One(), One(), []
    values[one], values[other] = "a", "b"
    values[one] = "c"
    assert (values.get(one), values.get(other), values.get(One())) == ("c", "b", None)
    sys.setprofile(lambda frame, event, _: event == "call" and called.append(frame.f_code))
    try:
        del one
    finally:
        sys.setprofile(None)
    assert not called and list(values._values.values()) == ["b"]


def test_an_object_is_held_no_more():
    objects, one, other = LiveObjects(), One(), One()
    objects.add(one)
    objects.discard(one)
    objects.discard(other)
    assert one not in objects and not list(objects)
