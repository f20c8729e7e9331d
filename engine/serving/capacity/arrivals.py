"""When requests arrive: renewal processes of a mean rate and a burstiness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trireme.support.dtypes import Array
from trireme.support.errors import RunError


@dataclass(frozen=True)
class Arrivals:
    """Requests that arrive independently of each other and of their answers (an open loop).

    qps: requests a second in the mean
    burstiness: variance of the time between two requests over its squared mean: 0 a clock, 1 a
        Poisson process, more are bursts
    seed: of the random times
    """

    qps: float
    burstiness: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.qps < np.inf:
            raise RunError(f"a load of {self.qps} requests a second, expected more than 0")
        if not 0 <= self.burstiness < np.inf:
            raise RunError(f"a burstiness of {self.burstiness}, expected 0 or more")

    def times(self, count: int) -> Array:
        """Return the times in seconds at which `count` requests arrive, from 0 on.

        Equal seeds give the same process at every rate, drawn out in time, so that two loads differ
        by their rate alone.
        """
        rng = np.random.default_rng(self.seed)
        if self.burstiness == 0:
            gaps = np.ones(count)
        elif self.burstiness == 1:
            gaps = rng.exponential(size=count)
        else:
            gaps = rng.gamma(1 / self.burstiness, self.burstiness, count)
        gaps[:1] = 0
        times: Array = np.cumsum(gaps) / self.qps
        return times
