"""Which inputs and outputs of a model with open shapes are used in place, for `Session.bind`."""

from __future__ import annotations

from collections.abc import Mapping

from trireme.runtime.dynamic.program import OpenProgram
from trireme.runtime.dynamic.resizable import ShapeRun
from trireme.runtime.io_binding import IN_PLACE_BYTES
from trireme.runtime.program_session import ProgramSession
from trireme.runtime.requests.bound_run import MovingIO
from trireme.support.dtypes import Array
from trireme.support.errors import RunError


def moving_in(program: object, feeds: Mapping[str, Array]) -> MovingIO | None:
    """Return what runs of these feeds read and write where it is; None where they copy all.

    program: what a session runs; buckets pad, and the host hands out what several programs make
    """
    if not isinstance(program, OpenProgram) or program.pads:
        return None
    try:
        region = program.whole(feeds).region
    except RunError:
        return None
    if isinstance(region, ShapeRun):
        return MovingIO(region.moves, 0)
    if isinstance(region, ProgramSession):
        return MovingIO(region.moves, IN_PLACE_BYTES)
    return None
