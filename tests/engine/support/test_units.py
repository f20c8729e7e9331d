"""Numbers as people read them: three digits and a unit."""

import pytest

from trireme.support.units import bytes_text, energy_text, rate_text, time_text


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.0, "0 us"),
        (41e-9, "41.0 ns"),
        (0.9994e-6, "999 ns"),
        (0.9996e-6, "1.00 us"),
        (34.04e-6, "34.0 us"),
        (-1.2e-3, "-1.20 ms"),
        (0.9996, "1.00 s"),
        (312.0, "312 s"),
    ],
)
def test_seconds(seconds, text):
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    "nbytes, text",
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (3.4 * 2**20, "3.40 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (5e15, "4547 TiB"),
    ],
)
def test_bytes(nbytes, text):
    assert bytes_text(nbytes) == text


def test_rates_and_energy():
    assert rate_text(12.84e9, "B/s") == "12.8 GB/s"
    assert rate_text(3e12, "FLOP/s") == "3.00 TFLOP/s"
    assert rate_text(12.0, "B/s") == "12 B/s"
    assert energy_text(4.1e-3) == "4.10 mJ" and energy_text(0.0) == "0 uJ"
