"""How long a call with some requests takes: as the cost model prices it, or as it is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trireme.cost.model import CostModel
from trireme.ir.bind_shapes import bind_shapes, shapes_at
from trireme.ir.graph import Graph
from trireme.passes.pipeline import optimise
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.placement.shards.batch import batched
from trireme.runtime.session import Session
from trireme.serving.capacity.queueing import Service
from trireme.support.dtypes import Array, numpy_dtype

_WARM_UP = 5


def sizes_up_to(most: int) -> list[int]:
    """Return the sizes of batches whose times are asked for: powers of two, and the most."""
    return sorted({1 << k for k in range(most.bit_length()) if 1 << k <= most} | {most})


def of_size(graph: Graph, size: int) -> Graph:
    """Return a model, optimised for calls with some requests: the first axis of every input.

    Errors: PlacementError, if the first axes are no batch
    """
    firsts = {value.shape[0] if value.shape else None for value in graph.input_values()}
    if len(firsts) == 1 and isinstance(symbol := firsts.pop(), str):
        return optimise(bind_shapes(graph, shapes_at(graph, {symbol: size})))
    return batched(optimise(graph), size)


def predicted_times(
    graph: Graph, costs: CostModel, sizes: Sequence[int], options: PlacementOptions
) -> dict[int, float]:
    """Return the predicted seconds of a call, by the number of requests in it.

    graph: with a first axis that is 1 or a symbol; costs: of the devices to place on
    """
    return {size: place(of_size(graph, size), costs, options).makespan_s for size in sizes}


def measured_times(
    open_session: Callable[[Graph], Session],
    graph: Graph,
    sizes: Sequence[int],
    calls: int,
    runs: int = 30,
) -> dict[int, Array]:
    """Return measured seconds of calls, by the number of requests in them.

    calls: how many run at once, each on a thread of its own; runs: of each of them
    """
    found: dict[int, Array] = {}
    for size in sizes:
        with open_session(of_size(graph, size)) as session:
            feeds = _zeros(session)
            samples: list[float] = []
            threads = [
                threading.Thread(target=_time_runs, args=(session, feeds, samples, runs))
                for _ in range(calls)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        found[size] = np.array(samples)
    return found


def _time_runs(
    session: Session, feeds: Mapping[str, Array], samples: list[float], runs: int
) -> None:
    for number in range(_WARM_UP + runs):
        start = time.perf_counter()
        session.run(feeds)
        if number >= _WARM_UP:
            samples.append(time.perf_counter() - start)


def _zeros(session: Session) -> dict[str, Array]:
    return {
        value.name: np.zeros(value.type.dims, numpy_dtype(value.dtype)) for value in session.inputs
    }


def steady(times: Mapping[int, float]) -> Service:
    """Return a service that takes the same time in every call, straight between known sizes."""
    sizes = sorted(times)
    seconds = [times[size] for size in sizes]
    return lambda size: float(np.interp(size, sizes, seconds))


def drawn(times: Mapping[int, Array], seed: int) -> Service:
    """Return a service whose calls take measured times at random, those of the next larger size."""
    rng = np.random.default_rng(seed)
    sizes = sorted(times)
    return lambda size: float(rng.choice(times[next(s for s in sizes if s >= size)]))
