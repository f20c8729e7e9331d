"""Rows that the items of a work-group share, for GPUs: a long row is slow for one item.

An item takes every so-manieth element of its row. The items then join their values in a tree
through local memory, whose order does not depend on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from trireme.devices.opencl.kernels.source import lanes_for
from trireme.devices.opencl.lowering import round_up
from trireme.devices.opencl.tuning import Tuning

_LEAST = 8
_EACH = 8
_WARP = 32


@dataclass(frozen=True)
class SharedRows:
    """How many items share a row, and how many rows a work-group has, for so many rows.

    Statements find `mine`, the item's row within its group, and `lane`, its place along the row. A
    row beyond the last has the `length` 0.
    """

    items: int
    rows: int
    count: int

    @property
    def work(self) -> tuple[int, ...]:
        """Items along a row, and rows, a multiple of the group's."""
        return round_up((self.items, self.count), self.group)

    @property
    def group(self) -> tuple[int, int]:
        """The work-group."""
        return (self.items, self.rows)

    def start(self, ctype: str, size: str) -> list[str]:
        """Return the declarations of local memory and of an item's place; `size` is a row's."""
        return [
            f"__local {ctype} shared[{self.rows}][{self.items}];",
            "const int lane = (int)get_local_id(0), mine = (int)get_local_id(1);",
            f"const int length = i1 < ROWS ? {size} : 0;",
        ]

    def join(self, ctype: str, name: str, step: str) -> list[str]:
        """Return the statements that join the variable of all items of a row by {s} and {v}."""
        return [
            f"shared[mine][lane] = {name};",
            f"for (int apart = {self.items // 2}; apart > 0; apart /= 2) {{",
            "barrier(CLK_LOCAL_MEM_FENCE);",
            "if (lane < apart) {",
            f"const {ctype} v = shared[mine][lane + apart];",
            f"{name} = {step.format(s=name, v='v')};",
            f"shared[mine][lane] = {name};",
            "}",
            "}",
            "barrier(CLK_LOCAL_MEM_FENCE);",
            f"{name} = shared[mine][0];",
            "barrier(CLK_LOCAL_MEM_FENCE);",
        ]


def shared_rows(tuning: Tuning, rows: int, size: int) -> SharedRows | None:
    """Return how items share rows of a size; None where an item makes a row alone."""
    if tuning.row_items == 1 or size < _LEAST:
        return None
    items = lanes_for(min(size, max(size // _EACH, _WARP)), tuning.row_items)
    return SharedRows(items, max(tuning.group // items, 1), rows)
