"""What passing data between cores costs: measured, said in words, and in estimates."""

import threading

import pytest

from trireme.device import open_device
from trireme.errors import DeviceError
from trireme.handover import Handover, median_of, moved, priced

NEAR, FAR = Handover(56e-9, 0.1e-9, 0.98), Handover(245e-9, 0.5e-9, 0.96)
SHARED = Handover(28e-9, 0.03e-9, 0.5)


def test_how_far_apart():
    assert [one.apart for one in (SHARED, NEAR, FAR)] == ["shared", "near", "far"]
    assert str(FAR) == ("the cores have no cache in common (a flag takes 245 ns, a byte 0.50 ns)")
    assert median_of([NEAR, FAR, NEAR]) == NEAR


def test_a_change_is_said_with_what_helps():
    assert moved("cpu", NEAR, Handover(60e-9, 0.12e-9)) == ""
    assert moved("cpu", None, FAR) == moved("cpu", NEAR, None) == ""
    said = moved("cpu", NEAR, FAR)
    assert said.startswith("cpu: the cores have no cache in common") and "56 ns" in said
    assert said.endswith("trireme calibrate --cores")


def test_terms_in_seconds_of_the_cores():
    terms = {"bytes": 4.0, "handed_bytes": 1000.0, "joins": 2.0}
    assert priced(terms, None) == terms
    found = priced(terms, FAR)
    assert found == pytest.approx({"bytes": 4.0, "handed_bytes": 5e-7, "joins": 4.9e-7})
    assert sum(found.values()) > sum(priced(terms, NEAR).values())


@pytest.mark.parametrize("threads", [2, 3])
def test_cores_are_measured(threads):
    """Other work may take a core meanwhile: then nothing is said."""
    device = open_device("cpu", threads=threads)
    try:
        found = [device.handover() for _ in range(5)]
    finally:
        device.close()
    for one in found:
        assert one is None or (one.flag_s > 0 and one.byte_s > 0 and 0 < one.alone <= 1)


def test_several_threads_may_ask():
    device = open_device("cpu", threads=2)
    wrong = []

    def ask():
        try:
            device.handover()
        except Exception as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    device.close()
    assert not wrong
    with pytest.raises(DeviceError, match="closed"):
        device.handover()


def test_one_thread_hands_nothing_over():
    for options in ({"threads": 1}, {"name": "cpu#1"}):
        device = open_device(options.pop("name", "cpu"), **options)
        assert device.handover() is None
        device.close()


@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_every_instruction_set(isa):
    device = open_device("cpu", threads=2, isa=isa)
    one = device.handover()
    device.close()
    assert one is None or one.flag_s > 0
