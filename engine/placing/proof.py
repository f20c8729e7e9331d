"""What a proof of a placement says, and the exact solver that makes it: an optional extra
(`trireme[prove]`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from trireme.errors import PlacementError
from trireme.placing.problem import Assignment
from trireme.placing.stages import Tasks

ROUNDING = 1e-4
"""A bound this near is a proof: what is left is the rounding of prices to units."""


@dataclass(frozen=True)
class Proof:
    """What the solver found: the least price it met, the price nothing can be below, and how.

    status: "optimal" when both are the same but for rounding, else "feasible"
    """

    status: str
    value: float
    bound: float
    assigned: Assignment
    tasks: Tasks
    seconds: float


def solver() -> Any:
    """Return OR-Tools' CP-SAT module.

    Errors: PlacementError, if it is not installed
    """
    return _imported("ortools.sat.python.cp_model")


def linear_solver() -> Any:
    """Return OR-Tools' module of linear programmes.

    Errors: PlacementError, if it is not installed
    """
    return _imported("ortools.linear_solver.python.model_builder")


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PlacementError(
            "a proof needs OR-Tools, which is not installed",
            facts=[str(error)],
            fix="pip install 'trireme[prove]'",
        ) from error
