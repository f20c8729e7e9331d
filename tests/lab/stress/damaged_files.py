"""Read damaged model files, and run some of them: the child process of the part `mutants`.

As a program, `python -m lab.stress.damaged_files FORMAT SEED COUNT EVERY FIRST`, in
bounded memory and time, with seed files on standard input (mutations.py). Every EVERY-th case that
reads is opened and run as well; 0 runs none.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable

import numpy as np

from lab.stress.bounded import try_cases
from lab.stress.mutations import damaged_cases, read_seeds
from trireme.ir.graph import Graph
from trireme.ir.verify import check
from trireme.model_file.convert import convert
from trireme.runtime.program.feeds import random_array
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError, TriremeError

MOST_FED = 1 << 24
"""Bytes that a file is fed; one that wants more is opened only."""
SYMBOL = 3
"""What an open dimension is."""
Feeds = dict[str, Array]
Attempt = Callable[[tuple[int, bytes]], str]


def attempt_with(read: Callable[[bytes], Graph], every: int = 0) -> Attempt:
    """Return what reads damaged bytes; a typed error may hide no other in its causes.

    A session or a run may lack memory: its typed error says what for. A reader may not.
    """

    def attempt(case: tuple[int, bytes]) -> str:
        number, data = case
        unsaid: tuple[type[BaseException], ...] = (MemoryError, RecursionError, InternalError)
        try:
            graph = read(data)
            check(graph)
            unsaid = (RecursionError, InternalError)
            if not every or number % every:
                return "read"
            return "ran" if run(graph, number) else "opened"
        except TriremeError as error:
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, unsaid):
                    return f"untyped {traceback.format_exc()}"
                cause = cause.__cause__
            raise

    return attempt


def open_shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return shapes for the inputs that a graph leaves open."""
    return {
        value.name: tuple(dim if isinstance(dim, int) else SYMBOL for dim in value.shape)
        for value in graph.input_values()
        if not value.type.is_static
    }


def run(graph: Graph, number: int) -> tuple[Feeds, list[Array]] | None:
    """Open a graph on the cpu and run it with random inputs; return them and the outputs.

    None is a graph that wants more than MOST_FED: it is opened only.
    """
    shapes = open_shapes(graph)
    options = ExecutionOptions(model_cache=None)
    with Session(graph, shapes=shapes or None, threads=1, execution_options=options) as session:
        if sum(value.type.nbytes for value in session.inputs) > MOST_FED:
            return None
        rng = np.random.default_rng(number)
        feeds = {value.name: random_array(value, rng) for value in session.inputs}
        found = session.run(feeds)
        return feeds, [found[value.name] for value in session.outputs]


def main(format: str, seed: str, count: str, every: str, first: str) -> None:
    """Try the cases from `first` on."""
    warnings.simplefilter("ignore")
    seeds = read_seeds()

    def read(data: bytes) -> Graph:
        return convert(data, format=format)

    for data in seeds[:1]:
        read(data)
    cases = damaged_cases(format, seeds, int(seed), int(count), int(first))
    numbered = ((number, (number, data)) for number, data in cases)
    try_cases(numbered, attempt_with(read, int(every)), int(first))


if __name__ == "__main__":
    main(*sys.argv[1:])
