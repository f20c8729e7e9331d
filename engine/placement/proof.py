"""The proof of a placement, and the exact solver that makes it: an optional extra
(`trireme-engine[prove]`).
"""

from __future__ import annotations

import importlib
from typing import Any

from trireme.placement.problem import Assignment
from trireme.placement.stages import Tasks
from trireme.support.errors import PlacementError
from trireme.support.installing import install_extra
from trireme.support.records import dataclass

ROUNDING = 1e-4
"""A bound this near is a proof: the rest is the rounding of prices to units."""

_STEPS_PER_S = 0.4
"""CP-SAT's deterministic time a second of a core of 2024 (measured: 0.3 to 0.4)."""
PATIENCE = 10
"""Times longer than on a quiet machine that a proof may take on a busy one."""


@dataclass(frozen=True)
class Proof:
    """The solver's result: its least price, the lower bound, and the status.

    status: "optimal" when both are the same but for rounding, else "feasible"
    seconds: the solver's; 0 where the bounds were a proof and it was not asked
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
    """Return a run of CP-SAT with the work of some seconds on a core of its own.

    It counts its own steps. So with one worker it proves the same on a busy machine, in `PATIENCE`
    times the seconds at most.
    """
    run = solver().CpSolver()
    run.parameters.max_deterministic_time = limit_s * _STEPS_PER_S
    run.parameters.max_time_in_seconds = limit_s * PATIENCE
    run.parameters.num_workers = workers
    run.parameters.random_seed = 0
    return run
