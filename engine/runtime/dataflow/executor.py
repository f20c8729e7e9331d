"""Run dataflow primitives as tasks with waits; the tasks of a frame are armed once an iteration.

A task runs when its tokens are there, and sends dead tokens if one of its own is dead. A merge
sends its first live token. A frame begins when all its enters have sent. Its next iteration begins
when all tasks of the last one are over: iterations of a frame do not overlap.
Source: the primitives of Yu et al. (EuroSys 2018), without their overlap of iterations
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
from trireme.support.cancel import check_cancelled, current_token
from trireme.support.dtypes import Array
from trireme.support.errors import DeviceError, FaultKind, InternalError, RunError
from trireme.support.threads import TaskThreads

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
class _Frame:
    """The tasks of a frame; the name "" stands for the whole graph.

    around: the frame that its enters run in; None for the whole graph
    enters, exits, backs: ids of its enters, exits and next_iterations
    firsts: ids of the enters for iteration 0 alone
    tasks: ids of what runs in it, its children's enters and its exits included
    number, unfinished: the iteration under way; its tasks and children that are not over
    entering: enters that have not sent yet; sent: live tokens of exits and next_iterations
    """

    name: str
    around: _Frame | None
    enters: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    backs: list[int] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    children: list[_Frame] = field(default_factory=list)
    number: int = 0
    unfinished: int = 0
    entering: int = 0
    sent: dict[int, Any] = field(default_factory=dict)

    @property
    def path(self) -> tuple[tuple[str, int], ...]:
        """The frames that an op is in, outermost first, each with its iteration."""
        return () if self.around is None else (*self.around.path, (self.name, self.number))


def _frames_of(graph: DataflowGraph) -> tuple[_Frame, list[_Frame], list[_Frame]]:
    """Return the whole graph, and the frames that each primitive runs in and sends to."""
    root = _Frame("", None)
    frames: dict[str, _Frame] = {}
    runs: list[_Frame] = []
    sends: list[_Frame] = []
    for primitive in graph.primitives:
        waits = [port.primitive for port in primitive.waits if port.primitive < primitive.id]
        frame = target = sends[waits[0]] if waits else root
        frame.tasks.append(primitive.id)
        if primitive.kind == "enter":
            if primitive.frame not in frames:
                target = frames[primitive.frame] = _Frame(primitive.frame, frame)
                frame.children.append(target)
            target = frames[primitive.frame]
            target.enters.append(primitive.id)
            if not primitive.is_constant:
                target.firsts.append(primitive.id)
        elif primitive.kind == "exit" and frame.around is not None:
            frame.exits.append(primitive.id)
            target = frame.around
        elif primitive.kind == "next_iteration":
            frame.backs.append(primitive.id)
        runs.append(frame)
        sends.append(target)
    return root, runs, sends


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
        self._root, self._frames, self._targets = _frames_of(graph)
        self._counts = [self._made_inside(one) for one in graph.primitives]
        self._left = list(self._counts)
        self._workers, self._are_beside = workers, False
        self._threads = TaskThreads("dataflow", max(workers, 1))
        self._check_ops: Callable[[], None] | None = None
        self.spans: deque[PrimitiveSpan] = deque(maxlen=MOST_SPANS)

    def watch(self, check: Callable[[], None]) -> None:
        """Call a function now and then while an op is waited for: it raises where the op hangs.

        Without workers, ops of a run with a token go to a thread that can be left behind.
        """
        self._check_ops = check

    def close(self) -> None:
        """End the threads."""
        self._threads.end()

    def run(self, feeds: Mapping[int, Array]) -> list[Any]:
        """Return the outputs in order, given arrays by value id of the lowered graph's inputs.

        Errors: RunError, if the run takes longer than it may; those of the ops
        """
        is_watched = self._check_ops is not None and current_token() is not None
        self._are_beside = bool(self._workers) or is_watched
        self._ready: deque[int] = deque()
        self._done: queue.SimpleQueue[tuple[Primitive, Any]] = queue.SimpleQueue()
        self._busy = 0
        self._tokens: dict[Port, Any] = {}
        self._feeds = {task: feeds[value] for value, task in self.graph.inputs.items()}
        self.spans = deque(maxlen=MOST_SPANS)
        self._latest = self._root
        self._arm(self._root, 0)
        self._loop()
        outputs = self.graph.outputs
        self._feeds, tokens, self._tokens = {}, self._tokens, {}
        return [tokens[one] if isinstance(one, Port) else one for one in outputs]

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
            if self._root.unfinished:
                raise InternalError(f"{self.graph.name}: a primitive waits for no token")
        except BaseException as error:
            if _is_hang(error):
                self._threads.leave()
            self.close()  # no other work of this run is left behind
            raise

    def _next_done(self) -> tuple[Primitive, Any]:
        """Return an op that is over, with its result. Errors: RunError, if a thread died"""
        while True:
            try:
                return self._done.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._check_ops is not None:
                    self._check_ops()
                if not self._threads.are_alive and self._done.empty():
                    raise RunError(
                        f"{self.graph.name}: a thread ended before its op was over",
                        fix="run again: other threads are started",
                    ) from None

    def _timed_out(self) -> RunError:
        """Return the error of a run that takes too long: the outermost loop, and its turn."""
        name, turn = (*self._latest.path, (self.graph.name, 0))[0]
        return RunError(
            f"{name} did not end within {self._timeout_s:g} s: {turn:,} turns are done",
            fix="a larger timeout_s, or a trip count",
        )

    def _made_inside(self, primitive: Primitive) -> int:
        """Return how many tokens a task waits for that its own iteration makes."""
        kinds = [self.graph.primitives[port.primitive].kind for port in primitive.waits]
        return sum(kind not in ("enter", "next_iteration") for kind in kinds)

    def _arm(self, frame: _Frame, number: int) -> None:
        """Begin an iteration of a frame."""
        frame.number, frame.unfinished = number, len(frame.tasks) + len(frame.children)
        for child in frame.children:
            child.entering = len(child.enters)
        for task in frame.tasks:
            self._left[task] = self._counts[task]
            if not self._counts[task]:
                self._ready.append(task)

    def _start(self, task: int) -> None:
        """Run a task: an op on a worker where there is one, all others at once."""
        primitive, self._latest = self.graph.primitives[task], self._frames[task]
        tokens = [self._tokens.get(port, DEAD) for port in primitive.waits]
        if primitive.kind == "merge":
            self._finish(primitive, [next((one for one in tokens if one is not DEAD), DEAD)])
        elif any(one is DEAD for one in tokens):
            self._finish(primitive, [DEAD] * primitive.outputs)
        elif primitive.kind == "op" and self._are_beside:
            self._busy += 1
            self._threads.submit(partial(self._work, primitive, tokens, self._done))
        else:
            self._finish(primitive, self._compute(primitive, tokens))

    def _work(
        self,
        primitive: Primitive,
        tokens: Sequence[Any],
        done: queue.SimpleQueue[tuple[Primitive, Any]],
    ) -> None:
        try:
            result: Any = self._compute(primitive, tokens)
        except BaseException as error:
            result = error
        done.put((primitive, result))

    def _take(self, primitive: Primitive, result: Any) -> None:
        self._busy -= 1
        if isinstance(result, BaseException):
            raise result
        self._finish(primitive, result)

    def _compute(self, primitive: Primitive, tokens: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs of a primitive whose tokens are live."""
        left = iter(tokens)
        operands = [next(left) if isinstance(one, Port) else one for one in primitive.operands]
        if primitive.kind == "input":
            return [self._feeds[primitive.id]]
        if primitive.kind == "op":
            return self._op(primitive, operands)
        if primitive.kind == "call":
            if primitive.function is None:
                raise InternalError(f"{primitive} has no function")
            return [primitive.function(*operands)]
        if primitive.kind == "switch":
            data, chosen = operands
            return [DEAD, data] if bool(chosen) else [data, DEAD]
        return operands[:1]

    def _op(self, primitive: Primitive, operands: list[Any]) -> Sequence[Any]:
        if primitive.node is None or primitive.graph is None:
            raise InternalError(f"{primitive} has no node")
        start = time.perf_counter()
        results = self._run_node(primitive.graph, primitive.node, operands)
        end, worker = time.perf_counter(), threading.current_thread().name
        frames = self._frames[primitive.id].path
        self.spans.append(PrimitiveSpan(primitive.label, frames, start, end, worker))
        return results

    def _finish(self, primitive: Primitive, results: Sequence[Any]) -> None:
        """Send the results of a task, by the rules of its kind."""
        frame = self._frames[primitive.id]
        if primitive.kind == "enter":
            self._tokens[Port(primitive.id)] = results[0]
            child = self._targets[primitive.id]
            child.entering -= 1
            if not child.entering:
                child.sent.clear()
                self._arm(child, 0)
                self._check(child)
        elif primitive.kind in ("exit", "next_iteration"):
            if results[0] is not DEAD:
                frame.sent[primitive.id] = results[0]
        else:
            self._send(primitive.id, results)
        frame.unfinished -= 1
        self._check(frame)

    def _send(self, task: int, tokens: Sequence[Any]) -> None:
        """Give the tokens of a task to those that read them in the same iteration."""
        for output, token in enumerate(tokens):
            port = Port(task, output)
            self._tokens[port] = token
            for reader in self.graph.readers.get(port, ()):
                self._left[reader] -= 1
                if not self._left[reader]:
                    self._ready.append(reader)

    def _check(self, frame: _Frame) -> None:
        """Begin the next iteration of a frame, or end it, where all its tasks are over."""
        if frame.unfinished or frame.around is None:
            return
        again = any(back in frame.sent for back in frame.backs)
        for task in (*frame.firsts, *frame.backs):
            self._tokens[Port(task)] = frame.sent.pop(task, DEAD)
        if again:
            self._arm(frame, frame.number + 1)
            return
        for task in frame.exits:
            self._send(task, [frame.sent.pop(task, DEAD)])
        frame.around.unfinished -= 1
        self._check(frame.around)


def _is_hang(error: BaseException) -> bool:
    return isinstance(error, DeviceError) and error.kind is FaultKind.HANG
