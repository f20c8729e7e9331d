"""The commands that work with one model or with the machine; each takes parsed options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trireme.backend.device import DeviceSpec
from trireme.backend.registry import device_names, kind_named, open_device
from trireme.ir.bind_shapes import with_known_sizes
from trireme.ir.graph import Graph, Value
from trireme.model_file import save
from trireme.model_file.branches import convert_at
from trireme.model_file.convert import optional_inputs
from trireme.model_file.export import export
from trireme.passes.pipeline import optimise
from trireme.runtime.loop.executors import summary
from trireme.runtime.session.session import Session
from trireme.support.errors import ConvertError, DeviceError, RunError
from trireme.support.units import bytes_text, rate_text, time_text
from trireme.tools.feeds import make_feeds, named_inputs
from trireme.tools.image import load_labels, top_k
from trireme.tools.output import emit, write_arrays
from trireme.tools.parsed import model_shapes, open_session
from trireme.tools.programs import captured_graph, is_program
from trireme.tools.progress import Progress
from trireme.tools.python_ops import python_ops
from trireme.tools.supported_ops import kernel_lines, support_table, table_text


def load(options: argparse.Namespace) -> Graph:
    """Return the model of the options as it is, not optimised."""
    return convert_at(
        options.model,
        model_shapes(options),
        signature=options.signature,
        python_ops=python_ops(options),
    )


def convert(options: argparse.Namespace) -> int:
    """Write a model, or a function of a Python file, as a .trm file or as another format."""
    progress = Progress()
    progress(f"converting {options.model}")
    if options.input and not is_program(options.model):
        raise ConvertError("--input gives types to FILE.py:FUNCTION, and the model is a file")
    graph = captured_graph(options) if is_program(options.model) else load(options)
    if options.optimise:
        graph = optimise(graph)
    source = Path(options.model.rpartition(":")[0] if is_program(options.model) else options.model)
    target = Path(options.output or source.with_suffix(".trm"))
    (save if target.suffix.lower() in ("", ".trm") else export)(graph, target)
    progress.done()
    nbytes = target.stat().st_size
    data = {"output": str(target), "bytes": nbytes, "nodes": len(graph.nodes)}
    emit(options, data, f"{target}: {len(graph.nodes)} nodes, {bytes_text(nbytes)}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run a model once."""
    with prepared_session(options) as session:
        if options.load_state:
            session.set_state(options.load_state)
        feeds = make_feeds(options, named_inputs(options, session))
        steps: list[str] = []
        if options.nodes:
            outputs = session.run_nodes(feeds, lambda step: steps.append(str(step)))
        else:
            outputs = session.run(feeds)
        if options.save_state:
            session.get_state().save(options.save_state)
        if options.output:
            write_arrays(options.output, outputs)
        shown = outputs or {f"state {n}": state for n, state in session.get_state().items()}
        lines = [
            f"{name}: {array.dtype}{list(array.shape)} {summary(array)}"
            for name, array in shown.items()
        ]
        data: dict[str, Any] = {"outputs": outputs, **faults_of(session)}
        if options.labels:
            if not session.outputs:
                raise RunError("--labels names the classes of an output, and there is none")
            names = load_labels(options.labels)
            first = session.outputs[0]
            best = top_k(outputs[first.name], names, options.top, first.type)
            lines = [f"{score:10.4f}  {label}" for label, score in best]
            data["classes"] = [{"label": label, "score": score} for label, score in best]
        lines = [*steps, *lines, *device_lines(session)]
        emit(options, data, "\n".join(lines))
    return 0


def prepared_session(options: argparse.Namespace) -> Session:
    """Return the session of the options, with progress of what it loads."""
    progress = Progress()
    progress(f"preparing {options.model} for {options.devices}")
    try:
        return open_session(options, progress=progress)
    finally:
        progress.done()


def device_lines(session: Session, events: bool = True) -> list[str]:
    """Return a line for each device that is left out or unused, and for each of several stages.

    events: whether to name faults, which a profile names itself
    """
    lines = fault_lines(session) if events else []
    if session.is_stored:  # one device, which runs all
        return lines
    if not all(stage.has_plan and not stage.bucket for stage in session.stages):
        return lines + [str(stage) for stage in session.stages]
    unused = session.placement.unused
    return lines + [f"{name} unused: {why}" for name, why in unused.items()]


def fault_lines(session: Session) -> list[str]:
    """Return a line for each device that is left out, and for each fault of a run."""
    lines = [f"left out: {name}: {why}" for name, why in session.dropped.items()]
    return lines + [str(event) for event in session.events if event.action != "left out"]


def faults_of(session: Session) -> dict[str, Any]:
    """Return the devices that are left out and the faults so far, for JSON."""
    return {"dropped": session.dropped, "events": [event.to_json() for event in session.events]}


def info(options: argparse.Namespace) -> int:
    """Show what is in a model."""
    graph = load(options)
    inputs, optional = with_known_sizes(graph), optional_inputs(options.model)
    counts: dict[str, int] = {}
    for node in graph.nodes:
        counts[node.op] = counts.get(node.op, 0) + 1
    constants = [value for value in graph.values.values() if value.data is not None]
    nbytes = sum(value.data.nbytes for value in constants if value.data is not None)
    data = {
        "name": graph.name,
        "inputs": [_value_json(value) for value in inputs],
        "optional_inputs": [_value_json(value) for value in optional],
        "outputs": [_value_json(value) for value in graph.output_values()],
        "nodes": len(graph.nodes),
        "ops": counts,
        "constants": len(constants),
        "constant_bytes": nbytes,
    }
    lines = [f"{graph.name}: {len(graph.nodes)} nodes, {bytes_text(nbytes)} of constants"]
    lines += [f"  input  {value.name} {value.type}" for value in inputs]
    lines += [f"  input  {value.name} {value.type} (optional)" for value in optional]
    lines += [f"  output {value.name} {value.type}" for value in graph.output_values()]
    lines += [f"  {count:5} {op}" for op, count in sorted(counts.items(), key=_most_first)]
    if options.graph:
        lines.append(str(graph))
        data["graph"] = str(graph)
    emit(options, data, "\n".join(lines))
    return 0


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _value_json(value: Value) -> dict[str, Any]:
    shape = list(value.shape) if value.type.has_rank else None
    return {"name": value.name, "shape": shape, "dtype": value.dtype}


def devices(options: argparse.Namespace) -> int:
    """Show the devices of this machine; one that cannot be opened says why."""
    data: dict[str, Any] = {}
    lines = []
    for name in device_names():
        try:
            device = open_device(name)
        except DeviceError as error:
            data[name] = {"error": str(error)}
            lines.append(f"{name:8} cannot be opened: {error}")
            continue
        spec = device.spec
        device.close()
        data[name] = {key: value for key, value in vars(spec).items() if key != "flops"}
        data[name]["cores"] = sorted(spec.cores)
        data[name]["flops"] = dict(spec.flops)
        lines.append(f"{name:8} {spec.description}")
        lines.append(
            f"{'':8} {rates_text(spec)}; {rate_text(spec.bandwidth, 'B/s')}; "
            f"launch {time_text(spec.launch_s)}; memory {spec.memory}; {spec.clock} clock"
        )
        if shares := _shares(name):
            data[name]["instances"] = shares
            each = "; ".join(f"{one} cores {_numbers(cores)}" for one, cores in shares.items())
            lines.append(f"{'':8} side by side as {len(shares)} instances: {each}")
    lines += [line for name in device_names() for line in _choice(name)]
    emit(options, data, "\n".join(lines))
    return 0


def rates_text(spec: DeviceSpec) -> str:
    """Return what a device computes a second, by dtype."""
    return ", ".join(f"{dtype} {rate_text(rate, 'FLOP/s')}" for dtype, rate in spec.flops.items())


def _shares(kind: str) -> dict[str, list[int]]:
    """Return the cores of each instance of a device cut into two; none where it cannot be."""
    found = {}
    for name in (f"{kind}#1", f"{kind}#2"):
        try:
            device = open_device(name, instances=2)
        except DeviceError:
            return {}
        found[name] = sorted(device.spec.cores)
        device.close()
    return found if all(found.values()) else {}


def _numbers(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores))


def _choice(name: str) -> list[str]:
    """Return what could be opened as a device, where there is more to choose than one."""
    try:
        found = kind_named(name).found()
    except DeviceError:
        return []
    if len(found) < 2:
        return []
    return [f"{name} devices, the preferred first:", *(f"  {one}" for one in found)]


def supported_ops(options: argparse.Namespace) -> int:
    """Show which device has a kernel for which op."""
    if options.table:
        lines = kernel_lines()
        data = [line._asdict() for line in lines]
        emit(options, {"kernels": data}, "\n".join(map(str, lines)))
        return 0
    table = support_table()
    emit(options, table.to_json(), table_text(table))
    return 0
