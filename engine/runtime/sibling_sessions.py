"""Sessions that a session opens beside itself: of another graph, or to measure a placement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from trireme.support.errors import RunError

if TYPE_CHECKING:
    from trireme.backend.device import Device
    from trireme.cost.calibration import Calibration
    from trireme.placement.placement import Placement
    from trireme.runtime.executors import Mode
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.session_arguments import SessionArguments
    from trireme.runtime.signatures import GraphChoice

Opener = TypeVar("Opener")


def sibling(
    open_session: Callable[..., Opener], arguments: SessionArguments, choice: GraphChoice
) -> Opener:
    """Open a session of another graph of a session's model."""
    if isinstance(choice, str):
        return _of_signature(open_session, arguments, choice)
    return _fed(open_session, arguments, choice)


def _fed(
    open_session: Callable[..., Opener], arguments: SessionArguments, names: Sequence[str]
) -> Opener:
    """Open a session of the same arguments, whose runs feed these optional inputs too."""
    from trireme.runtime.options import ExecutionOptions

    if arguments.placement is not None:
        raise RunError(
            f"a held placement is of the graph with constants for {', '.join(names)}",
            fix=f"ExecutionOptions(optional_inputs={list(names)}) opens a session that takes them",
        )
    how = arguments.execution_options or ExecutionOptions()
    how = replace(how, optional_inputs=(*how.optional_inputs, *names))
    return open_session(**{**vars(arguments), "progress": None, "execution_options": how})


def _of_signature(
    open_session: Callable[..., Opener], arguments: SessionArguments, signature: str
) -> Opener:
    from trireme.runtime.options import ExecutionOptions

    how = replace(arguments.execution_options or ExecutionOptions(), signature=signature)
    return open_session(
        arguments.model,
        devices=arguments.devices,
        threads=arguments.threads,
        fallback=arguments.fallback,
        mode=arguments.mode,
        calibration=arguments.calibration,
        execution_options=how,
    )


def holding(
    open_session: Callable[..., Opener],
    mode: Mode,
    options: ExecutionOptions,
    devices: Sequence[Device],
    calibration: Calibration,
    placement: Placement,
) -> Opener:
    """Open a session that holds a placement, to be measured."""
    from trireme.runtime.options import ExecutionOptions

    return open_session(
        placement.source,
        devices=devices,
        placement=placement,
        mode=mode,
        calibration=calibration,
        execution_options=ExecutionOptions(
            subgraphs=options.subgraphs, execution=options.execution, passes=()
        ),
    )
