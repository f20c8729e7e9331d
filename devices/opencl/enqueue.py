"""Enqueue many kernels in one native call, without an event for each.

A driver's call takes a few microseconds, of which an event and Python are a large share. The
kernels between a call's first and its last need no event, because a queue runs them in order.
Source: OpenCL 1.2, clEnqueueNDRangeKernel
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from trireme.devices.opencl.events import device_error
from trireme.support.dtypes import Array

_LOOP = """
declare i32 @clEnqueueNDRangeKernel(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr, ptr)
define i32 @enqueue(ptr %queue, ptr %rows, i64 %count) {
start:
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %j, %more ]
  %done = icmp eq i64 %i, %count
  br i1 %done, label %end, label %call
call:
  %at = mul i64 %i, 8
  %row = getelementptr i64, ptr %rows, i64 %at
  %kernel = load ptr, ptr %row
  %rank_at = getelementptr i64, ptr %row, i64 1
  %rank = load i32, ptr %rank_at
  %work = getelementptr i64, ptr %row, i64 2
  %group = getelementptr i64, ptr %row, i64 5
  %r = call i32 @clEnqueueNDRangeKernel(ptr %queue, ptr %kernel, i32 %rank,
      ptr null, ptr %work, ptr %group, i32 0, ptr null, ptr null)
  %good = icmp eq i32 %r, 0
  br i1 %good, label %more, label %fail
more:
  %j = add i64 %i, 1
  br label %next
end:
  ret i32 0
fail:
  ret i32 %r
}
"""
"""A row is a kernel, the rank of its work, three sizes of the work and three of the group."""


class _Loop:
    """The compiled loop."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm
        import pyopencl as cl

        driver = ctypes.CDLL(cl._cl.__file__)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        address = ctypes.cast(driver.clEnqueueNDRangeKernel, ctypes.c_void_p).value or 0
        llvm.add_symbol("clEnqueueNDRangeKernel", address)
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_LOOP), machine)
        self._engine.finalize_object()
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self.call = kind(self._engine.get_function_address("enqueue"))


@cache
def _loop() -> _Loop:
    return _Loop()


class KernelRows:
    """Kernels with their work, ready to be enqueued."""

    def __init__(self, kernels: Sequence[tuple[Any, Sequence[int], Sequence[int]]]) -> None:
        rows: Array = np.zeros((len(kernels), 8), np.int64)
        for row, (kernel, work, group) in zip(rows, kernels, strict=True):
            row[:2] = kernel.int_ptr, len(work)
            row[2 : 2 + len(work)], row[5 : 5 + len(group)] = work, group
        self.kernels, self._rows = [kernel for kernel, _, _ in kernels], rows
        self._loop = _loop() if kernels else None

    def enqueue(self, queue: Any) -> None:
        """Enqueue all kernels in order.

        Errors: DeviceError, when the driver refuses one
        """
        if self._loop is None:
            return
        code = self._loop.call(queue.int_ptr, self._rows.ctypes.data, len(self._rows))
        if code:
            raise device_error(f"a launch failed with the driver's code {code}", code)
