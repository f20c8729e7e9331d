"""The cost of passing data between the pool's threads, measured in steps as kernels run.

Every thread writes a stretch of memory and reads it again, then its neighbour's; so when it writes
the next time, another core holds it. Then pairs of threads answer each other's flags, and all
multiply numbers at once, which takes longer where two share a core. A millisecond, if the workers
are awake.
"""

from __future__ import annotations

import threading
from string import Template

import numpy as np

from trireme.backend.core_latency import CoreLatency, median_of
from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.devices.cpu.codegen.jit import Jit
from trireme.devices.cpu.codegen.kernel_cache import Code, code_of
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.runtime import native
from trireme.devices.cpu.runtime.pool import PoolCall, StepPool
from trireme.support.forks import register_at_fork

_BYTES = 16 << 10
"""Bytes of a stretch: a part of the first cache."""
_ROUNDS, _ANSWERS, _PRODUCTS = 8, 64, 4000
_MEASURED, _TRIED = 3, 8
"""Rounds of measurement that are wanted, and rounds that are tried. Another process may take a core
meanwhile."""
_PATIENCE = 100_000
"""Looks at a flag before a thread gives up: its neighbour sleeps, or was taken off its core."""
_WORDS = 8
"""Words of arguments: base, bytes of a stretch, flags, count, threads, results, neighbour,
products."""


def _lines(form: str, count: int) -> str:
    return "".join(form.format(k=k) for k in range(count))


_IR = Template(r"""
define void @trireme_cpu_fill(ptr %args, i64 %chunk, ptr %local) {
entry:
  %base = load ptr, ptr %args
  %ps = getelementptr i64, ptr %args, i64 1
  %size = load i64, ptr %ps
  %off = mul i64 %chunk, %size
  %p = getelementptr i8, ptr %base, i64 %off
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %q = getelementptr i8, ptr %p, i64 %i
  store volatile i64 %i, ptr %q, align 8
  %i1 = add i64 %i, 64
  %more = icmp ult i64 %i1, %size
  br i1 %more, label %loop, label %out
out:
  ret void
}

; Read the stretch of the thread that is NEIGHBOUR further on.
define void @trireme_cpu_scan(ptr %args, i64 %chunk, ptr %local) {
entry:
  %base = load ptr, ptr %args
  %ps = getelementptr i64, ptr %args, i64 1
  %size = load i64, ptr %ps
  %pt = getelementptr i64, ptr %args, i64 4
  %threads = load i64, ptr %pt
  %pn = getelementptr i64, ptr %args, i64 6
  %next = load i64, ptr %pn
  %sum = add i64 %chunk, %next
  %who = urem i64 %sum, %threads
  %off = mul i64 %who, %size
  %p = getelementptr i8, ptr %base, i64 %off
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %q = getelementptr i8, ptr %p, i64 %i
  %v = load volatile i64, ptr %q, align 8
  %i1 = add i64 %i, 64
  %more = icmp ult i64 %i1, %size
  br i1 %more, label %loop, label %out
out:
  ret void
}

; Threads 2k and 2k + 1 write a number each in turn; a flag of -1 says that one gave up.
define void @trireme_cpu_answer(ptr %args, i64 %chunk, ptr %local) {
entry:
  %pf = getelementptr i64, ptr %args, i64 2
  %flags = load ptr, ptr %pf
  %pc = getelementptr i64, ptr %args, i64 3
  %count = load i64, ptr %pc
  %pt = getelementptr i64, ptr %args, i64 4
  %threads = load i64, ptr %pt
  %other = xor i64 %chunk, 1
  %pair = icmp ult i64 %other, %threads
  %om = mul i64 %chunk, $LINE
  %mine = getelementptr i64, ptr %flags, i64 %om
  %oo = mul i64 %other, $LINE
  %theirs = getelementptr i64, ptr %flags, i64 %oo
  %is_first = icmp ult i64 %chunk, %other
  br i1 %pair, label %turn, label %out
turn:
  %k = phi i64 [ 1, %entry ], [ %k1, %next ]
  br i1 %is_first, label %say, label %listen
say:
  store atomic i64 %k, ptr %mine release, align 8
  br label %listen
listen:
  br label %look
look:
  %n = phi i64 [ 0, %listen ], [ %n1, %again ]
  %v = load atomic i64, ptr %theirs acquire, align 8
  %heard = icmp uge i64 %v, %k
  br i1 %heard, label %got, label %again
again:
  %n1 = add i64 %n, 1
  %late = icmp ugt i64 %n1, $PATIENCE
  br i1 %late, label %give_up, label %look
got:
  br i1 %is_first, label %next, label %reply
reply:
  store atomic i64 %k, ptr %mine release, align 8
  br label %next
next:
  %k1 = add i64 %k, 1
  %more = icmp ule i64 %k1, %count
  br i1 %more, label %turn, label %out
give_up:
  store atomic i64 -1, ptr %mine release, align 8
  br label %out
out:
  ret void
}

; Chains of products and sums, as many as keep the units of a core busy.
define void @trireme_cpu_multiply(ptr %args, i64 %chunk, ptr %local) {
entry:
  %pc = getelementptr i64, ptr %args, i64 7
  %count = load i64, ptr %pc
  %pr = getelementptr i64, ptr %args, i64 5
  %results = load ptr, ptr %pr
  %o = mul i64 %chunk, $LINE
  %p = getelementptr i64, ptr %results, i64 %o
  %half = load <4 x float>, ptr %p, align 16
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
$PHIS$STEPS  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %count
  br i1 %more, label %loop, label %out
out:
$SUMS  %q = getelementptr i64, ptr %p, i64 2
  store <4 x float> %s$LAST, ptr %q, align 16
  ret void
}
""")
_CHAINS = 12
_FUNCTIONS = ("trireme_cpu_fill", "trireme_cpu_scan", "trireme_cpu_answer", "trireme_cpu_multiply")


def _probe(isa: Isa) -> Code:
    """Return the functions as one piece of code."""
    step = "  %m{k} = fmul <4 x float> %a{k}, %half\n  %b{k} = fadd <4 x float> %m{k}, %half\n"
    sums = "".join(
        f"  %s{k} = fadd <4 x float> {f'%s{k - 1}' if k else '%half'}, %b{k}\n"
        for k in range(_CHAINS)
    )
    text = _IR.substitute(
        LINE=native.LINE,
        PATIENCE=_PATIENCE,
        LAST=_CHAINS - 1,
        SUMS=sums,
        PHIS=_lines("  %a{k} = phi <4 x float> [ %half, %entry ], [ %b{k}, %loop ]\n", _CHAINS),
        STEPS=_lines(step, _CHAINS),
    )
    return code_of("handover", text)


class HandoverProbe:
    """Measures a pool's threads; any thread may ask, one at a time is answered."""

    def __init__(self, jit: Jit, pool: StepPool) -> None:
        self.threads = pool.threads
        self.reset_after_fork()
        register_at_fork(self)
        codes = jit.functions(jit.recipes.kernel(_probe), _FUNCTIONS)
        fill, scan, answer, multiply = codes
        lines = self.threads * native.LINE
        self._memory = aligned_bytes(self.threads * _BYTES)
        self._flags = aligned_bytes(8 * lines).view("int64")
        self._results = aligned_bytes(8 * lines)
        self._results.view("float32")[:] = 0.5
        self._args = np.zeros((2, _WORDS), np.int64)
        for neighbour, row in enumerate(self._args):
            row[:] = (
                self._memory.ctypes.data,
                _BYTES,
                self._flags.ctypes.data,
                _ANSWERS,
                self.threads,
                self._results.ctypes.data,
                neighbour,
                _PRODUCTS,
            )
        own, next = (row.ctypes.data for row in self._args)
        mine = [(fill, own), (scan, own), (fill, own), (scan, next)] * _ROUNDS + [(answer, own)]
        rows = [(code, args, self.threads, 0, 0) for code, args in mine]
        rows += [(multiply, own, count, 0, 0) for count in (1, self.threads) * 2]
        table = np.zeros((len(rows), native.STEP_WORDS), np.int64)
        table[:, :5] = rows
        self._stamps = np.zeros((len(rows), 2), np.int64)
        call = PoolCall(
            table, shared=True, wakes=True, tries=False, polls=False, stamps=self._stamps
        )
        self._run = pool.bind(call)

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of a measurement of another thread."""
        self._lock = threading.Lock()

    def measure(self) -> CoreLatency | None:
        """Return what passing data costs now; None while a core is given to other work."""
        with self._lock:
            self._once()  # wakes the workers
            found: list[CoreLatency] = []
            for _ in range(_TRIED):
                one = self._once()
                found += [] if one is None else [one]
                if len(found) == _MEASURED:
                    return median_of(found)
            return None

    def _once(self) -> CoreLatency | None:
        self._flags[:] = 0
        self._run()
        took = (self._stamps[:, 1] - self._stamps[:, 0]).astype(np.float64) * 1e-9
        *moves, answers = took[: 4 * _ROUNDS + 1]
        one_s, all_s, *more = took[4 * _ROUNDS + 1 :]
        if (self._flags == -1).any() or not answers > 0 or not all_s > 0:
            return None
        written = float(np.median(np.reshape(moves, (_ROUNDS, 4))[1:, 0]))
        alone = min(one_s, more[0]) / max(min(all_s, more[1]), 1e-9)
        return CoreLatency(
            float(answers) / (2 * _ANSWERS), written / _BYTES, min(float(alone), 1.0)
        )
