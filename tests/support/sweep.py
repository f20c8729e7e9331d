"""Tables of cases of which a few always run and the rest are a sweep (`-m sweep`, .ci/run)."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sweep(cases: Iterable[Any], always: Callable[..., bool] | Iterable[Any]) -> list[Any]:
    """Return the cases as parameters, those marked `sweep` that `always` does not hold.

    cases: values, or tuples of several parameters
    always: the cases that always run, or a function that says which do
    """
    if not callable(always):
        kept = list(always)
        cases = list(cases)
        assert all(case in cases for case in kept), "a representative is not in the table"
        return [_param(case, case in kept) for case in cases]
    return [_param(case, always(*_values(case))) for case in cases]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def _param(case: Any, runs: bool) -> Any:
    return pytest.param(*_values(case), marks=() if runs else pytest.mark.sweep)
