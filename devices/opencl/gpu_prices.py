"""Seconds of a kernel on a GPU that nobody has measured.

A kernel costs its launch, its bytes at the device's bandwidth, and cycles of the compute units for
the terms of its work. The cycles were fitted to an NVIDIA H200 (docs/experiments/opencl.md). They
hold for its own clock and number of units, so a smaller GPU is slower in proportion. Calibration
replaces the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LAUNCH_S = 5e-6
"""Seconds between the starts of two small kernels of one queue."""
CHAIN = "chain"
"""The term of cycles that follow each other in one group, so that units do not share them."""

_ANY: Mapping[str, float] = {"items": 2.0, "flops": 0.4, "finish": 0.8, "taps": 0.3}
_CYCLES: Mapping[str, Mapping[str, float]] = {
    "product": {"multiplies": 1.0, "places": 0.9},
    "product_local": {"multiplies": 1.0},
    "depthwise": {"taps": 0.4},
    "reduce": {"items": 80.0, "flops": 0.4},
}
"""Cycles of a compute unit for each term of a family, without its dtype."""
_STARTS: Mapping[str, float] = {
    "depthwise": 3e-6,
    "product_local": 0.6e-6,
    "layer_normalization": 1.5e-6,
    "rms_normalization": 1.5e-6,
    "softmax": 1e-6,
    "log_softmax": 1e-6,
    "max_pool": 2e-6,
    "average_pool": 1.5e-6,
}
"""Seconds by which a family's shortest kernels exceed a launch."""


@dataclass(frozen=True)
class GpuFacts:
    """The facts of a GPU that prices follow: compute units, clock in hertz, bytes a second."""

    units: int
    clock: float
    bandwidth: float

    def seconds(self, family: str, terms: Mapping[str, float]) -> float:
        """Return the seconds of a kernel by its family and the terms of its work.

        Terms count rounds of all units (`cost_features`), so a cycle of theirs is shared by all.
        """
        name = family
        for dtype in ("_f32", "_s8", "_int8"):
            name = name.replace(dtype, "")
        cycles = _CYCLES.get(name, _ANY)
        work_s = sum(cycles.get(term, 0.0) * each for term, each in terms.items())
        work_s /= self.units * self.clock
        chain_s = terms.get(CHAIN, 0.0) / self.clock
        copied_s = terms.get("bytes", 0.0) / self.bandwidth
        return LAUNCH_S + _STARTS.get(name, 0.0) + max(work_s, chain_s, copied_s)
