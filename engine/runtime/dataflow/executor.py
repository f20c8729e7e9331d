"""Run dataflow primitives: tokens, frames, iterations, and a queue of what is ready.

A primitive runs once for each iteration of each instance of its frame, when its tokens are there.
It sends dead tokens if one of its own is dead; a merge waits for the first live one. Any number of
iterations of a frame may be under way, up to a limit, so turns that do not wait for each other
overlap. Source: the rules of TensorFlow's executor, as Yu et al. (EuroSys 2018) give them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trireme.ir.graph import Graph, Node
from trireme.runtime.dataflow.graph import DataflowGraph, Port, Primitive
from trireme.runtime.dataflow.workers import OpThreads
from trireme.support.cancel import check_cancelled, current_token
from trireme.support.dtypes import Array
from trireme.support.errors import DeviceError, FaultKind, InternalError, RunError

_LOOK_S = 0.05
"""Seconds between looks whether the threads that are waited for live."""
MOST_SPANS = 100_000
"""Spans that are kept of a run, the last ones: a loop may take any number of turns."""
RunNode = Callable[[Graph, Node, list[Array | None]], Sequence[Array]]


class _Dead:
    """The token of a path that is not taken."""

    def __repr__(self) -> str:
        return "dead"


DEAD = _Dead()


@dataclass(frozen=True)
class PrimitiveSpan:
    """When an op ran, in seconds of time.perf_counter.

    frames: the frames it is in, outermost first, each with its iteration
    """

    label: str
    frames: tuple[tuple[str, int], ...]
    start_s: float
    end_s: float
    worker: str

    def __str__(self) -> str:
        where = "".join(f"{name}[{iteration}] / " for name, iteration in self.frames)
        return f"{where}{self.label}"


@dataclass(eq=False)
class _Iteration:
    """The tokens of one iteration of a frame that wait for others.

    running: primitives that are ready or under way; children: frames under way
    """

    frame: _Frame
    number: int
    tokens: dict[int, dict[int, Any]] = field(default_factory=dict)
    merged: set[int] = field(default_factory=set)
    running: int = 0
    children: dict[str, _Frame] = field(default_factory=dict)


@dataclass(eq=False)
class _Frame:
    """One instance of a frame.

    around: the iteration that it was entered from; None for the whole graph
    enters: enters that have not sent yet
    constants: what every iteration gets; put_off: next_iterations over the limit
    dead_exits: exits that sent nothing live so far
    """

    name: str
    around: _Iteration | None
    enters: int
    iterations: dict[int, _Iteration] = field(default_factory=dict)
    constants: list[tuple[Primitive, Any]] = field(default_factory=list)
    put_off: list[tuple[int, Primitive, Any]] = field(default_factory=list)
    dead_exits: dict[int, Primitive] = field(default_factory=dict)
    live_exits: set[int] = field(default_factory=set)


_Ready = tuple[_Iteration, Primitive, list[Any]]


class Executor:
    """Runs a dataflow graph; one run at a time.

    run_node: runs an op on arrays; called from several threads where there are workers
    workers: threads that run ops; 0 runs all on the caller's thread
    timeout_s: seconds after which a run is given up; None for no end
    """

    def __init__(
        self,
        graph: DataflowGraph,
        run_node: RunNode,
        workers: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        self.graph, self._run_node, self._timeout_s = graph, run_node, timeout_s
        self._pool = self._threads = OpThreads("dataflow", workers) if workers else None
        self._beside: OpThreads | None = None
        self._check_ops: Callable[[], None] | None = None
        self.spans: deque[PrimitiveSpan] = deque(maxlen=MOST_SPANS)

    def watch(self, check: Callable[[], None]) -> None:
        """Call a function now and then while an op is waited for: it raises where the op hangs.

        Without workers, ops of a run with a token go to a thread that can be left behind.
        """
        self._check_ops = check
        if self._pool is None:
            self._beside = OpThreads("dataflow", 1)

    def close(self) -> None:
        """End the threads."""
        for threads in (self._pool, self._beside):
            if threads is not None:
                threads.end()

    def run(self, feeds: Mapping[int, Array]) -> list[Any]:
        """Return the outputs in order, given arrays by value id of the lowered graph's inputs.

        Errors: RunError, if the run takes longer than it may; those of the ops
        """
        self._threads = self._pool
        if self._beside is not None and current_token() is not None:
            self._threads = self._beside
        self._ready: deque[_Ready] = deque()
        self._done: queue.SimpleQueue[tuple[_Ready, Any]] = queue.SimpleQueue()
        self._busy = 0
        self._results: dict[Port, Any] = {}
        self.spans = deque(maxlen=MOST_SPANS)
        self._wanted = {port for port in self.graph.outputs if isinstance(port, Port)}
        root = _Frame("", None, 0)
        start = self._latest = root.iterations[0] = _Iteration(root, 0)
        self._begin(start, feeds)
        self._loop()
        return [self._results[one] if isinstance(one, Port) else one for one in self.graph.outputs]

    def _begin(self, start: _Iteration, feeds: Mapping[int, Array]) -> None:
        """Feed the inputs, and make ready what waits for nothing."""
        start.running += 1
        fed = {primitive: value for value, primitive in self.graph.inputs.items()}
        for primitive in self.graph.primitives:
            if primitive.kind == "input":
                self._send(start, primitive.id, [feeds[fed[primitive.id]]])
            elif not primitive.waits:
                self._make_ready(start, primitive, {})
        self._ended(start)

    def _loop(self) -> None:
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        try:
            while self._ready or self._busy:
                check_cancelled()
                if deadline is not None and time.monotonic() > deadline:
                    raise self._timed_out()
                if self._ready:
                    self._start(self._ready.popleft())
                if self._busy and (not self._ready or not self._done.empty()):
                    self._take(*self._next_done())
        except BaseException as error:
            if self._threads is not None and _is_hang(error):
                self._threads.leave()
            self.close()  # no other work of this run is left behind
            raise

    def _next_done(self) -> tuple[_Ready, Any]:
        """Return an op that is over, with its result. Errors: RunError, if a thread died"""
        while True:
            try:
                return self._done.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._check_ops is not None:
                    self._check_ops()
                threads = self._threads
                if threads is not None and not threads.are_alive and self._done.empty():
                    raise RunError(
                        f"{self.graph.name}: a thread ended before its op was over",
                        fix="run again: other threads are started",
                    ) from None

    def _timed_out(self) -> RunError:
        """Return the error of a run that takes too long: the outermost loop, and its turn."""
        frames = _path(self._latest)
        name, turn = frames[0] if frames else (self.graph.name, 0)
        return RunError(
            f"{name} did not end within {self._timeout_s:g} s: {turn:,} turns are done",
            fix="a larger timeout_s, or a trip count",
        )

    def _start(self, ready: _Ready) -> None:
        """Run a primitive: an op on a worker where there is one, all others at once."""
        self._latest, primitive, inputs = ready
        is_dead = any(token is DEAD for token in inputs) and primitive.kind != "merge"
        if primitive.kind == "op" and self._threads is not None and not is_dead:
            self._busy += 1
            self._threads.submit(partial(self._work, ready, self._done))
            return
        self._finish(ready, None if is_dead else self._compute(ready), is_dead)

    def _work(self, ready: _Ready, done: queue.SimpleQueue[tuple[_Ready, Any]]) -> None:
        try:
            result: Any = self._compute(ready)
        except BaseException as error:
            result = error
        done.put((ready, result))

    def _take(self, ready: _Ready, result: Any) -> None:
        self._busy -= 1
        if isinstance(result, BaseException):
            raise result
        self._finish(ready, result, False)

    def _compute(self, ready: _Ready) -> Sequence[Any]:
        """Return the outputs of a live primitive that stays in its iteration."""
        iteration, primitive, inputs = ready
        if primitive.kind == "merge":
            return inputs
        tokens = iter(inputs)
        operands = [next(tokens) if isinstance(one, Port) else one for one in primitive.operands]
        if primitive.kind == "op":
            return self._op(iteration, primitive, operands)
        if primitive.kind == "call":
            if primitive.function is None:
                raise InternalError(f"{primitive} has no function")
            return [primitive.function(*operands)]
        if primitive.kind == "switch":
            data, chosen = operands
            return [DEAD, data] if bool(chosen) else [data, DEAD]
        return operands[:1]

    def _op(
        self, iteration: _Iteration, primitive: Primitive, operands: list[Any]
    ) -> Sequence[Any]:
        if primitive.node is None or primitive.graph is None:
            raise InternalError(f"{primitive} has no node")
        start = time.perf_counter()
        results = self._run_node(primitive.graph, primitive.node, operands)
        end, worker = time.perf_counter(), threading.current_thread().name
        frames = _path(iteration)
        self.spans.append(PrimitiveSpan(primitive.label, frames, start, end, worker))
        return results

    def _finish(self, ready: _Ready, results: Sequence[Any] | None, is_dead: bool) -> None:
        """Send what a primitive made, by the rules of its kind."""
        iteration, primitive, inputs = ready
        if primitive.kind == "enter":
            self._enter(iteration, primitive, DEAD if is_dead else inputs[0])
        elif primitive.kind == "exit":
            self._exit(iteration, primitive, DEAD if is_dead else inputs[0])
        elif primitive.kind == "next_iteration":
            if not is_dead:
                self._next(iteration.frame, iteration.number + 1, primitive, inputs[0])
        else:
            sent = [DEAD] * primitive.outputs if results is None else results
            self._send(iteration, primitive.id, sent)
        self._ended(iteration)

    def _send(self, iteration: _Iteration, primitive: int, tokens: Sequence[Any]) -> None:
        """Give the tokens of a primitive to those that read them in an iteration."""
        for output, token in enumerate(tokens):
            port = Port(primitive, output)
            if port in self._wanted and iteration.frame.around is None:
                self._results[port] = token
            for reader, place in self.graph.readers.get(port, ()):
                self._deliver(iteration, self.graph.primitives[reader], place, token)

    def _deliver(self, iteration: _Iteration, reader: Primitive, place: int, token: Any) -> None:
        waiting = iteration.tokens.setdefault(reader.id, {})
        if reader.kind == "merge":
            if reader.id in iteration.merged:
                return
            waiting[place] = token
            if token is not DEAD:
                iteration.merged.add(reader.id)
                self._make_ready(iteration, reader, {0: token})
            elif len(waiting) == self._merge_inputs(reader, iteration):
                iteration.merged.add(reader.id)
                self._make_ready(iteration, reader, {0: DEAD})
            return
        waiting[place] = token
        if len(waiting) == len(reader.waits):
            del iteration.tokens[reader.id]
            self._make_ready(iteration, reader, waiting)

    def _merge_inputs(self, merge: Primitive, iteration: _Iteration) -> int:
        """Return how many tokens a merge can get: a dead next_iteration sends none."""
        kinds = [self.graph.primitives[port.primitive].kind for port in merge.waits]
        back = kinds.count("next_iteration")
        return len(kinds) - back if not iteration.number or not back else back

    def _make_ready(
        self, iteration: _Iteration, primitive: Primitive, tokens: Mapping[int, Any]
    ) -> None:
        iteration.running += 1
        inputs = [tokens[place] for place in sorted(tokens)]
        self._ready.append((iteration, primitive, inputs))

    def _enter(self, around: _Iteration, primitive: Primitive, token: Any) -> None:
        frame = around.children.get(primitive.frame)
        if frame is None:
            frame = _Frame(primitive.frame, around, self.graph.enters[primitive.frame])
            around.children[primitive.frame] = frame
            frame.iterations[0] = _Iteration(frame, 0)
        frame.enters -= 1
        if primitive.is_constant:
            frame.constants.append((primitive, token))
            for iteration in list(frame.iterations.values()):
                self._send(iteration, primitive.id, [token])
        else:
            self._send(frame.iterations[0], primitive.id, [token])
        self._check(frame)

    def _exit(self, iteration: _Iteration, primitive: Primitive, token: Any) -> None:
        frame = iteration.frame
        if token is DEAD:
            frame.dead_exits[primitive.id] = primitive
        elif frame.around is not None:
            frame.live_exits.add(primitive.id)
            self._send(frame.around, primitive.id, [token])

    def _next(self, frame: _Frame, number: int, primitive: Primitive, token: Any) -> None:
        """Send a live token to the next iteration, which begins where the limit allows it."""
        if number not in frame.iterations:
            if len(frame.iterations) >= self.graph.parallel_iterations:
                frame.put_off.append((number, primitive, token))
                return
            iteration = frame.iterations[number] = _Iteration(frame, number)
            for constant, value in frame.constants:
                self._send(iteration, constant.id, [value])
        self._send(frame.iterations[number], primitive.id, [token])

    def _ended(self, iteration: _Iteration) -> None:
        iteration.running -= 1
        self._check(iteration.frame)

    def _check(self, frame: _Frame) -> None:
        """End the iterations that nothing is under way in, oldest first, and then the frame."""
        while frame.iterations and not frame.enters:
            number = min(frame.iterations)
            oldest = frame.iterations[number]
            if oldest.running or oldest.children:
                return
            if frame.around is None:
                return
            del frame.iterations[number]
            waiting, frame.put_off = frame.put_off, []
            for later, primitive, token in waiting:
                self._next(frame, later, primitive, token)
        if frame.iterations or frame.enters or frame.around is None:
            return
        around = frame.around
        del around.children[frame.name]
        for exit in frame.dead_exits.values():
            if exit.id not in frame.live_exits:
                self._send(around, exit.id, [DEAD])
        self._check(around.frame)


def _is_hang(error: BaseException) -> bool:
    return isinstance(error, DeviceError) and error.kind is FaultKind.HANG


def _path(iteration: _Iteration | None) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    while iteration is not None and iteration.frame.around is not None:
        found.append((iteration.frame.name, iteration.number))
        iteration = iteration.frame.around
    return tuple(reversed(found))
