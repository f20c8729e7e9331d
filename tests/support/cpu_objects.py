"""The object code of kernels, compiled without a device."""

from trireme.devices.cpu.codegen.ahead import CompileAhead
from trireme.devices.cpu.codegen.kernel_cache import KernelCache


def objects(isa, codes, threads):
    """Return the object file of each kernel, in order, as several threads make them."""
    with CompileAhead(isa, KernelCache(isa), threads) as ahead:
        ahead.begin_all(codes)
        return [ahead.take(code) for code in codes]
