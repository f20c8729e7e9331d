"""`trireme place --over`: where a placement flips as a symbol of the model grows."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from trireme.backend.device import Device
from trireme.cost.calibration import Calibration, load_calibration
from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.placement.ranges import PlacedRange, place_over
from trireme.support.errors import RunError
from trireme.support.units import time_text
from trireme.tools.output import emit
from trireme.tools.parsed import calibration_path, placement_options

_RANGE = re.compile(r"(\w+)=(\d+)\.\.(\d+)")


def show_ranges(options: argparse.Namespace, graph: Graph, devices: Mapping[str, Device]) -> int:
    """Show the ranges of a symbol's sizes that have one placement each.

    graph: the model as it is, with the symbol open and all others bound
    """
    given = _RANGE.fullmatch(options.over)
    if given is None:
        raise RunError(f"--over {options.over}: expected SYMBOL=1..512")
    symbol, low, high = given[1], int(given[2]), int(given[3])
    measured = Calibration() if options.soc else load_calibration(calibration_path())
    asked = placement_options(options, None)
    found = place_over(graph, CostModel(devices, measured), asked, symbol, low, high)
    emit(options, {"symbol": symbol, "ranges": [_data(one) for one in found]}, _text(symbol, found))
    return 0


def _text(symbol: str, found: list[PlacedRange]) -> str:
    lines = [f"  {symbol:>14}  {'predicted':>22}  nodes"]
    for one in found:
        nodes = ", ".join(f"{count} on {device}" for device, count in one.nodes.items())
        ends = [time_text(end.makespan_s) for end in (one.at_low, one.at_high)]
        sizes = f"{one.low}..{one.high}" if one.high > one.low else str(one.low)
        lines.append(f"  {sizes:>14}  {' to '.join(ends):>22}  {nodes}")
    count = len(found)
    lines.append(f"{count} placements" if count > 1 else "one placement holds for the whole range")
    return "\n".join(lines)


def _data(one: PlacedRange) -> dict[str, object]:
    ends = {"low": one.at_low, "high": one.at_high}
    predicted = {f"predicted_s_at_{name}": end.makespan_s for name, end in ends.items()}
    return {"low": one.low, "high": one.high, "nodes": dict(one.nodes), **predicted}
