"""Where the zoo of trained models is, for tests that can use it and must pass without it."""

import os
import pathlib

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


def zoo_folder() -> pathlib.Path:
    """The zoo's folder, which may be absent: TRIREME_ZOO, else ../shared/zoo by the checkout."""
    return pathlib.Path(os.environ.get("TRIREME_ZOO", CHECKOUT.parent / "shared" / "zoo"))


def zoo_path(name: str) -> pathlib.Path:
    """The path of a file of the zoo; skips the test where the zoo is absent."""
    path = zoo_folder() / name
    if not path.exists():
        pytest.skip(f"the zoo has no {name} here (set TRIREME_ZOO)")
    return path
