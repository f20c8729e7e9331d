"""Check a decoded stream before the machine runs it, without trusting it.

A stream for another machine is refused. After the check no command touches a byte outside its
regions. Engines but DMA access SRAM only, and SRAM is as large as the machine's. Every barrier
waits for commands that exist.
"""

from __future__ import annotations

from trireme.devices.npu.spec import NpuSpec
from trireme.devices.npu.stream.access import reads, writes
from trireme.devices.npu.stream.commands import (
    ARGUMENTS,
    ENGINE_OF,
    KINDS,
    LARGEST_WINDOWS,
    SRAM,
    Barrier,
    Binary,
    CommandStream,
    Dims,
    Dma,
    Fill,
    Matrix,
    Pool,
    Resize,
    Softmax,
    Table,
    Unary,
    View,
    Window,
    Work,
)
from trireme.support.errors import DeviceError

LARGEST_COPY = 1 << 32
"""The most elements of one copy, far above real ones. A damaged stream fails here, and not for want
of memory, as with LARGEST_WINDOWS."""
FLOATS = ("float16", "float32")


def verify(spec: NpuSpec, task: CommandStream) -> CommandStream:
    """Return the task if the machine can run it safely.

    Errors: DeviceError, naming the command and the broken rule
    """
    if task.device != spec.name:
        raise DeviceError(
            f"NPU command stream: it was made for {task.device!r}, this machine is {spec.name!r}"
        )
    _regions(spec, task)
    counts = {"dma": 0, "matrix": 0, "vector": 0}
    for index, command in enumerate(task.commands):
        work = command.work
        problem = (
            f"node {command.node} does not exist"
            if command.node >= len(task.nodes)
            else _barrier(work, counts)
            if isinstance(work, Barrier)
            else _shape_problem(spec, work) or _bounds_problem(task, work)
        )
        if problem:
            raise DeviceError(f"NPU command {index} ({type(work).__name__}): {problem}")
        if not isinstance(work, Barrier):
            counts[ENGINE_OF[type(work)]] += 1
    for value in task.values:
        problem = _inside(task, value.place.region, *value.place.extent)
        if problem or value.node >= len(task.nodes):
            raise DeviceError(f"NPU value {value.id}: {problem or 'its node does not exist'}")
    return task


def _regions(spec: NpuSpec, task: CommandStream) -> None:
    kinds = tuple(region.kind for region in task.regions)
    if kinds[:ARGUMENTS] != KINDS[:ARGUMENTS] or set(kinds[ARGUMENTS:]) - {"argument"}:
        raise DeviceError(f"NPU command stream: regions {', '.join(kinds)} are not in order")
    if task.regions[SRAM].nbytes > spec.sram.bytes:
        raise DeviceError(
            f"NPU command stream: it needs {task.regions[SRAM].nbytes} bytes of SRAM, "
            f"{spec.name} has {spec.sram.bytes}"
        )


def _barrier(work: Barrier, counts: dict[str, int]) -> str:
    for engine, count in counts.items():
        wanted = getattr(work, engine)
        if wanted > count:
            return f"it waits for {wanted} {engine} commands, {count} come before it"
    return ""


def _bounds_problem(task: CommandStream, work: Work) -> str:
    for region, start, end in (*reads(work), *writes(work)):
        if problem := _inside(task, region, start, end):
            return problem
        if region != SRAM and not isinstance(work, (Dma, Fill)):
            return f"it works on {KINDS[min(region, ARGUMENTS)]}, not on SRAM"
    if any(region == 1 for region, _, _ in writes(work)):
        return "it writes constants"
    return ""


def _inside(task: CommandStream, region: int, start: int, end: int) -> str:
    if region >= len(task.regions):
        return f"region {region} does not exist"
    if end > task.regions[region].nbytes:
        size = task.regions[region].nbytes
        return f"bytes {start} to {end} leave the {size} bytes of region {region}"
    return ""


def _shape_problem(spec: NpuSpec, work: Work) -> str:
    views = [v for name in _VIEWS[type(work)] if (v := getattr(work, name)) is not None]
    if any(0 in view.shape for view in views):
        return "an empty view"
    most = LARGEST_COPY if isinstance(work, (Dma, Fill)) else 4 * spec.sram.bytes
    if any(view.elements > most for view in views):
        return f"a view of more than {most} elements"
    if any(n > 1 and not s for n, s in zip(*_target(work), strict=True)):
        return "the target repeats elements"
    if isinstance(work, Dma):
        return _copy_problem(work.source, work.target)
    if isinstance(work, Fill):
        return ""
    if any(view.dtype not in spec.dtypes for view in views):
        return f"a dtype that {spec.name} has not"
    if isinstance(work, Matrix):
        return _matrix_problem(spec, work)
    if isinstance(work, Pool):
        if work.ifm.shape[::3] != work.ofm.shape[::3] or work.ifm.dtype != work.ofm.dtype:
            return "input and output do not fit"
        return _window_problem(spec, work.window, work.ifm, work.ofm)
    if isinstance(work, Resize):
        if work.x.shape[::3] != work.y.shape[::3] or work.x.dtype != work.y.dtype:
            return "input and output do not fit"
        return ""
    if any(view.shape != views[0].shape for view in views):
        return "shapes differ"
    floats = [view.dtype in FLOATS for view in views]
    table_on_floats = isinstance(work, Table) and any(floats)
    if (
        any(floats) != all(floats)
        or table_on_floats
        or (isinstance(work, Unary) and not all(floats))
    ):
        return "dtypes do not fit"
    return ""


def _copy_problem(source: View, target: View) -> str:
    if source.shape != target.shape:
        return "source and target have different shapes"
    both = {source.dtype, target.dtype}
    if len(both) > 1 and not both <= set(FLOATS):
        return f"no conversion from {source.dtype} to {target.dtype}"
    return ""


def _target(work: Work) -> tuple[Dims, Dims]:
    """Return the shape and strides of a command's target."""
    for name in ("target", "ofm", "y"):
        view = getattr(work, name, None)
        if view is not None:
            return view.shape, view.strides
    return (1, 1, 1, 1), (0, 0, 0, 0)


def _matrix_problem(spec: NpuSpec, work: Matrix) -> str:
    ic, oc = work.ifm.shape[3], work.ofm.shape[3]
    floats = [t == "float16" for t in (work.ifm.dtype, work.ofm.dtype, work.weights_dtype)]
    if any(floats) != all(floats) or work.weights_dtype not in spec.dtypes:
        return "dtypes do not fit"
    if work.ifm.shape[0] != work.ofm.shape[0] or (work.depthwise and oc % ic):
        return "input and output do not fit"
    if work.residual is not None and (
        work.residual.shape != work.ofm.shape or work.residual.dtype != "float16"
    ):
        return "the residual does not fit the output"
    return _window_problem(spec, work.window, work.ifm, work.ofm)


def _window_problem(spec: NpuSpec, window: Window, ifm: View, ofm: View) -> str:
    kernel, stride = (window.kernel_h, window.kernel_w), (window.stride_h, window.stride_w)
    dilation = (window.dilation_h, window.dilation_w)
    if 0 in (*kernel, *stride, *dilation):
        return "a kernel, stride or dilation of 0"
    if max(stride) > spec.limits.stride or max(dilation) > spec.limits.dilation:
        return "a stride or dilation beyond the machine's"
    for axis, pad in ((1, window.pad_top), (2, window.pad_left)):
        reach = (ofm.shape[axis] - 1) * stride[axis - 1] + (kernel[axis - 1] - 1) * dilation[
            axis - 1
        ]
        if ofm.elements * kernel[0] * kernel[1] > LARGEST_WINDOWS:
            return "windows of too many elements"
        if abs(pad) > reach + ifm.shape[axis] or reach > 1 << 24:
            return "the window leaves its input"
    return ""


_VIEWS: dict[type, tuple[str, ...]] = {
    Dma: ("source", "target"),
    Fill: ("target",),
    Matrix: ("ifm", "ofm", "residual"),
    Pool: ("ifm", "ofm"),
    Binary: ("a", "b", "y"),
    Table: ("x", "y"),
    Unary: ("x", "y"),
    Softmax: ("x", "y"),
    Resize: ("x", "y"),
}
