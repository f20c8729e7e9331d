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


@dataclass(frozen=True)
class Proof:
    """What the solver found: the least price it met, the price nothing can be below, and how.

    status: "optimal" when both are the same but for rounding, else "feasible"
    stages: the labels that were allowed
    """

    status: str
    value: float
    bound: float
    assigned: Assignment
    tasks: Tasks
    stages: int
    seconds: float


def solver() -> Any:
    """Return OR-Tools' CP-SAT module.

    Errors: PlacementError, if it is not installed
    """
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise PlacementError(
            "a proof needs the CP-SAT solver, which is not installed",
            facts=[str(error)],
            fix="pip install 'trireme[prove]'",
        ) from error
