"""What a proof of a placement says, and the exact solver that makes it: an optional extra
(`trireme-engine[prove]`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from trireme.placement.problem import Assignment
from trireme.placement.stages import Tasks
from trireme.support.errors import PlacementError
from trireme.support.installing import install_extra

ROUNDING = 1e-4
"""A bound this near is a proof: what is left is the rounding of prices to units."""

_STEPS_PER_S = 0.4
"""CP-SAT's deterministic time a second of a core of 2024 (measured: 0.3 to 0.4)."""
PATIENCE = 10
"""How many times longer than on a quiet machine a proof may take, where others are at work."""


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
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise PlacementError(
            "a proof needs OR-Tools, which is not installed",
            facts=[str(error)],
            fix=install_extra("prove"),
        ) from error


def cp_run(limit_s: float, workers: int) -> Any:
    """Return a run of CP-SAT that has what it would do in some seconds of a core to itself.

    It counts its own steps, so that with one worker it proves the same on a busy machine, where it
    takes longer: `PATIENCE` times the seconds at most.
    """
    run = solver().CpSolver()
    run.parameters.max_deterministic_time = limit_s * _STEPS_PER_S
    run.parameters.max_time_in_seconds = limit_s * PATIENCE
    run.parameters.num_workers = workers
    run.parameters.random_seed = 0
    return run
