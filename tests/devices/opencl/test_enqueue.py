"""Kernels that are enqueued in one native call."""

import opencl
import pytest

from trireme.backend.registry import open_device
from trireme.devices.opencl.enqueue import KernelRows
from trireme.support.errors import DeviceError


def test_a_launch_that_the_driver_refuses_is_an_error(tmp_path):
    opencl.need_opencl()
    device = open_device("opencl", cache_dir=tmp_path)
    graph = opencl.region()
    executable = device.compile([graph])[0]
    buffers = [device.alloc(graph.type(i).nbytes) for i in (*graph.inputs, *graph.outputs)]
    call = executable.bind(buffers, device.alloc(max(executable.scratch_bytes, 64)))
    (good, *_) = call.launches
    odd = KernelRows([(good.kernel, good.work, tuple(size + 1 for size in good.group))])
    with pytest.raises(DeviceError, match="a launch failed with the driver's code -5"):
        odd.enqueue(device.context.queue("kernels", False))
    KernelRows([]).enqueue(device.context.queue("kernels", False))
