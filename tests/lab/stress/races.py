"""The part `races`: no two tasks touch the same bytes unordered, and none touches other bytes.

plans: the independent verifier proves plans of random graphs, and of the caller's models, on random
devices under random pins and options
orders: random orders that the waits of a plan allow give the bits of the parallel run
arenas: arenas and bound arrays lie between pages that nobody may touch
kernels: every operand of the cpu's kernels lies between such pages
oclgrind: OpenCL kernels run where Oclgrind checks every access
"""

from __future__ import annotations

from lab.stress import oclgrind
from lab.stress.children import run_cases
from lab.stress.part import StressPart, StressRun
from lab.stress.rows import StressRow

GOOD = {
    "plans": ("proved",),
    "orders": ("equal",),
    "arenas": ("equal",),
    "kernels": ("equal", "reference"),
    "oclgrind": ("equal", "unsupported"),
}
"""How a case of a subject may end."""
_PLANS, _MEMORY = "lab.stress.race_cases", "lab.stress.guard_cases"
_WHERE = {
    "plans": (_PLANS, "plans"),
    "orders": (_PLANS, "orders"),
    "arenas": (_MEMORY, "arenas"),
    "kernels": (_MEMORY, "kernels"),
    "oclgrind": (_MEMORY, "oclgrind"),
}


def run(asked: StressRun) -> StressRow:
    """Run the cases of one subject."""
    module, name = _WHERE[asked.subject]
    environment = oclgrind.environment() if asked.subject == "oclgrind" else {}
    if environment is None:
        return asked.skipped(f"the package {oclgrind.PACKAGE} is not installed")
    return run_cases(asked, module, name, GOOD[asked.subject], environment)


PART = StressPart(
    "happens-before of plans, orders, guard pages around memory, Oclgrind",
    tuple(GOOD),
    "cases",
    {
        "plans": {"change": 200, "night": 10_000, "release": 100_000},
        "orders": {"change": 10, "night": 300, "release": 3_000},
        "arenas": {"change": 20, "night": 1_000, "release": 10_000},
        "kernels": {"change": 100, "night": 5_000, "release": 20_000},
        "oclgrind": {"change": 10, "night": 500, "release": 2_000},
    },
    run,
)
