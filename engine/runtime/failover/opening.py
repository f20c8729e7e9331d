"""The failover of a session that opens: which devices it may go on without, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trireme.backend.device import HOST, Device
from trireme.ir.graph import Graph
from trireme.ir.op import get_op
from trireme.ir.selectors import unpinned
from trireme.ops.repeats import bodies_of
from trireme.runtime.failover.failover import Failover, FallbackSession

if TYPE_CHECKING:
    from trireme.placement.options import PlacementOptions
    from trireme.runtime.failover.events import EventLog
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.prepare import Prepared
    from trireme.runtime.session_arguments import SessionArguments


def open_failover(
    open_session: Callable[..., FallbackSession],
    arguments: SessionArguments,
    prepared: Prepared,
    devices: Mapping[str, Device],
    how: tuple[ExecutionOptions, PlacementOptions],
    log: EventLog,
    on_change: Callable[[], None],
) -> Failover | None:
    """Return the failover of a session; None where no device can be done without.

    devices: those that the session runs on, the host device that it may have added too
    how: its options of execution and of placement; a fixed placement has no say without a device
    on_change: see Failover
    """
    names = [name for name in devices if name != HOST or _asked_for_host(arguments)]
    if len(names) < 2:
        return None
    execution = replace(how[0], passes=(), passes_off=(), signature=None, optional_inputs=())
    placement = replace(how[1], pins={}, fixed=None)
    has_variables = prepared.tied is not None and prepared.tied.are_variables

    def open_on(left: Sequence[str]) -> FallbackSession:
        kept = [one for name, one in devices.items() if name in left or name not in names]
        opened = open_session(
            unpinned(prepared.graph, set(names) - set(left)),
            devices=kept,
            mode=arguments.mode,
            calibration=prepared.calibration,
            states=None if has_variables else arguments.states,
            buckets=arguments.buckets,
            placement_options=placement.without(set(names) - set(left)),
            execution_options=execution,
        )
        opened.watch_tasks()
        return opened

    writes = _writes_states(prepared.graph)
    return Failover(names, open_on, prepared.states, writes, log, on_change)


def _asked_for_host(arguments: SessionArguments) -> bool:
    given = arguments.devices or ()
    return any((one if isinstance(one, str) else one.spec.name) == HOST for one in given)


def _writes_states(graph: Graph) -> bool:
    """Whether a run can leave states of the graph, or of a body in it, half written."""
    return any(
        get_op(node.op).effect or any(map(_writes_states, bodies_of(node).values()))
        for node in graph.nodes
    )
