"""Laboratory programs: they look for faults and measure; the wheel carries none of them.

Each runs from the folder `tests` as `python -m lab.NAME`. They import what tests share in
`tests/support`.
"""

import os
import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]
_PATHS = [str(_TESTS), str(_TESTS / "support")]

sys.path += [path for path in _PATHS if path not in sys.path]


def child_environment() -> dict[str, str]:
    """Return the variables of a child process that imports the laboratory and the support."""
    before = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*_PATHS, before] if before else _PATHS)}
