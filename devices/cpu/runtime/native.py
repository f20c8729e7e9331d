"""The native part of the worker pool: LLVM IR that runs a table of steps with helpers.

A step is a kernel with a pointer table and a number of chunks. Every thread has a line of its own
that holds the step and a word, generation << 40 | next chunk << 20 | end: its share of the chunks,
in the same order for every step, so that what a thread wrote in one step is what it reads in the
next. The caller of `run` writes all words; a thread takes chunks from the front of its own and then
from the back of the others', each with a compare-and-swap, so a chunk is only ever taken from the
step now published. A worker that sleeps, or does not exist, is never waited for: the caller does
all chunks nobody else took.

Workers spin while a run has chunks for them and, unless the run parks them, for a while after, then
sleep on a futex (Linux) or return to Python (elsewhere). A run wakes them when it is long, or when
runs follow one another; a short run after a pause is over before they would be there.

Every slot that two threads write is on a cache line of its own.
"""

from __future__ import annotations

import platform
import sys
from string import Template

from trireme.devices.cpu.runtime.call_loop import RUN
from trireme.devices.cpu.runtime.chunks import CHUNKS
from trireme.devices.cpu.runtime.jobs import JOBS as JOBS_IR
from trireme.devices.cpu.runtime.teams import TEAMS
from trireme.devices.cpu.runtime.turns import REPEAT
from trireme.devices.cpu.runtime.worker_loop import WORKER

LINE = 16
"""Words from one line to the next: two cache lines, since some CPUs fetch pairs."""
# Slots of the context, in 8-byte words.
ACTIVE, DONE, EPOCH, SLEEPERS, STOP, LANES, TEAM = (LINE * k for k in range(7))
GENERATION, THREADS, LOCALS, LAST_RUN = (LINE * 7 + k for k in range(4))
LAST_CROWD = LINE * 8
SHARES = LINE * 9
"""The line of thread 0; each has its word, then the step."""
MOST_LANES = 64
"""Calls that run at once. Each has a lane, which is a bit of LANES, with memory of its own. LOCALS
points to where the memory is: its address and the bytes of each lane and worker."""
STOPPED, PARKED = 1, 2
"""What STOP says: workers are to return; they are to sleep at once, until a run calls them."""
ALONE, TOGETHER, CROWDED = 1, 2, 3
"""The mode of a call under way. A crowded one may have the workers later."""
POLITE = 1023
"""Of so many looks and one, a thread that waits gives its core away once, if others want it."""
CALM_NS = 2_000_000
"""A call gathers the workers when no call was crowded for so long: clients that take turns leave
gaps, which are too short to divide a step."""
# Slots of a call. AT, MINE, MODE and LANE (1 more than its number) are 0 but while a run is
# interrupted.
CALL_CONTEXT, CALL_STEPS, CALL_COUNT, CALL_BUDGET, CALL_STAMPS, CALL_WAKES = range(6)
CALL_AT, CALL_MINE, CALL_MODE = 6, 7, 8
# TRIES says that a short call tries both modes now and then; RUNS counts its runs, below 0 none: it
# stays with the faster; START is when this run began, 0 where others ran beside it; WITH and ALONE
# are what a run took lately with the workers and without.
# PARKS says that workers are to sleep as soon as the run is over: another device needs their cores.
CALL_TRIES, CALL_RUNS, CALL_START, CALL_WITH, CALL_ALONE, CALL_PARKS = 9, 10, 11, 12, 13, 14
CALL_LANE = 15
CALL_WORDS = 16
# Slots of a step: CHUNKS chunks from number BASE on; POLL says to look at the clock.
STEP_FN, STEP_ARGS, STEP_CHUNKS, STEP_BASE, STEP_POLL = range(5)
STEP_WORDS = 8
MOST_CHUNKS = (1 << 20) - 1
"""Chunks that fit a share's word; more need a step of their own with another BASE."""

# A counter: its count comes first. A server: the counters of what was submitted and of what is
# over, then a ring of jobs. A job: its call (STOP_JOB and PYTHON_JOB are none), the number of
# counters that it waits for, then each of these with its goal.
COUNTER_WAITERS = 1
JOBS_DONE, JOBS = LINE, LINE * 2
RING, JOB_WORDS = 64, 16
JOB_AFTER, JOB_WAITS = 1, 2
STOP_JOB, PYTHON_JOB = 0, 1
MOST_AFTER = (JOB_WORDS - JOB_WAITS) // 2
SERVER_WORDS = JOBS + RING * JOB_WORDS

# A repeated call: the calls of even and odd turns, the turn, the most turns, where its number is
# written and the byte that says whether to go on (0 for neither), whether a turn is under way,
# nanoseconds before Python looks after signals, and three tables, each with its number of lines:
# pointers that move (two slots, start, step), slices and rows (place, start, step, bytes). Then the
# faults of even and of odd turns (flag, number), and how many each has.
REPEAT_EVEN, REPEAT_ODD, REPEAT_TURN, REPEAT_MOST, REPEAT_NUMBER, REPEAT_ASKED = range(6)
REPEAT_INSIDE, REPEAT_BUDGET, REPEAT_TABLES = 6, 7, 8
REPEAT_FAULTS, REPEAT_FAULT_COUNT = 14, 16
REPEAT_WORDS = 24
REPEAT_BUDGET_NS = 20_000_000

FUNCTIONS = (
    "trireme_cpu_run",
    "trireme_cpu_worker",
    "trireme_cpu_stop",
    "trireme_cpu_repeat",
)
SERVER_FUNCTIONS = ("trireme_cpu_serve", "trireme_cpu_await", "trireme_cpu_advance")

_FUTEX = {"x86_64": 202, "amd64": 202, "aarch64": 98, "arm64": 98}
_PAUSE = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "aarch64": 'call void asm sideeffect "yield", ""()',
}


def context_words(threads: int) -> int:
    """Return the size of a context."""
    return SHARES + LINE * threads


def has_futex() -> bool:
    """Whether workers can sleep inside native code on this system."""
    return sys.platform == "linux" and platform.machine().lower() in _FUTEX


def runtime_ir(futex: bool, hot_ns: int) -> str:
    """Return the IR of `run`, `repeat`, `worker` and `stop` for this system.

    hot_ns: a run that begins so soon after the last one is one of many, and wakes the workers
    """
    machine = platform.machine().lower()
    sleep, wake = _parking(machine) if futex else ("br label %leave\nafter_sleep:", "")
    jobs, wait, advance = (JOBS_IR, *_counting(machine)) if futex else ("", "", "")
    return Template(CHUNKS + TEAMS + RUN + REPEAT + WORKER + jobs).substitute(
        {name: value for name, value in globals().items() if name.isupper()},
        PAUSE=_PAUSE.get({"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine), ""),
        CLOCK=1 if sys.platform == "linux" else 6,  # CLOCK_MONOTONIC, as time.perf_counter uses
        SLEEP=sleep,
        WAKE=wake,
        COUNTER_WAIT=wait,
        COUNTER_WAKE=advance,
        HOT=hot_ns,
    )


def _parking(machine: str) -> tuple[str, str]:
    """Return the instructions that sleep while the epoch is %seen, and that wake all sleepers."""
    number = _FUTEX[machine]
    wait = f"call i64 (i64, ...) @syscall(i64 {number}, ptr %epoch, i32 128, i32 %seen, ptr null)"
    wake = f"call i64 (i64, ...) @syscall(i64 {number}, ptr %epoch, i32 129, i32 2147483647)"
    return f"%slept = {wait}\n  br label %after_sleep\nafter_sleep:", f"%woken = {wake}"


def _counting(machine: str) -> tuple[str, str]:
    """Return the instructions that sleep while a counter is %seen, and that wake who does."""
    number = _FUTEX[machine]
    wait = f"i64 {number}, ptr %counter, i32 128, i32 %seen, ptr %timeout"
    wake = f"i64 {number}, ptr %counter, i32 129, i32 2147483647"
    call = "call i64 (i64, ...) @syscall"
    return f"%slept = {call}({wait})", f"%woken = {call}({wake})"
