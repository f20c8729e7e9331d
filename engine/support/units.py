"""Numbers with a unit that a person reads: "1.73 ms", "3.77 MiB", "12.8 GB/s".

Everything printed for people uses these; JSON keeps plain seconds and bytes. Memory counts in
powers of two (KiB), rates in powers of ten (GB/s), as the field does.
"""

from __future__ import annotations

from collections.abc import Sequence

_TIMES = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
_SIZES = (("TiB", 2.0**-40), ("GiB", 2.0**-30), ("MiB", 2.0**-20), ("KiB", 2.0**-10))
_RATES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_ENERGIES = (("J", 1.0), ("mJ", 1e3), ("uJ", 1e6))
_ONE = 0.9995
"""The least number that takes the larger unit: 0.9995 rounds to 1.00."""


def time_text(seconds: float) -> str:
    """Return seconds to three digits: "1.73 ms"; below a microsecond in nanoseconds."""
    if seconds and abs(seconds) * 1e6 < _ONE:
        return f"{_three_digits(seconds * 1e9)} ns"
    return _scaled(seconds, _TIMES)


def energy_text(joules: float) -> str:
    """Return joules to three digits: "4.10 mJ"."""
    return _scaled(joules, _ENERGIES)


def bytes_text(nbytes: float) -> str:
    """Return bytes to three digits: "3.77 MiB"; below a KiB exactly: "812 bytes"."""
    if nbytes < 1024:
        return f"{nbytes:.0f} byte{'' if nbytes == 1 else 's'}"
    return _scaled(nbytes, _SIZES)


def rate_text(per_second: float, unit: str) -> str:
    """Return a rate to three digits; `unit` is its unit without a prefix: "12.8 GB/s"."""
    for prefix, scale in _RATES:
        if per_second >= scale * _ONE:
            return f"{_three_digits(per_second / scale)} {prefix}{unit}"
    return f"{per_second:.3g} {unit}"


def _scaled(number: float, units: Sequence[tuple[str, float]]) -> str:
    """Return a number in the largest unit that makes it at least one, else in the smallest."""
    unit, scale = next((one for one in units if abs(number) * one[1] >= _ONE), units[-1])
    return f"{_three_digits(number * scale)} {unit}"


def _three_digits(number: float) -> str:
    if not number:
        return "0"
    size = abs(number)
    return f"{number:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"
