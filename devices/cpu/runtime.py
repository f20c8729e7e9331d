"""The native part of the worker pool: LLVM IR that runs a table of steps with helpers.

A step is a kernel with a pointer table and a number of chunks. The caller of `run` publishes a
step in one word, `claim` = generation << 32 | chunks left; whoever wants a chunk takes it with a
compare-and-swap, so a chunk is only ever taken from the step now published, and a worker that
sleeps, or does not exist, is never waited for: the caller does all chunks nobody else took.
Workers spin for a while, then sleep on a futex (Linux) or return to Python (elsewhere).

Every slot of the context that two threads write is on a cache line of its own.
"""

from __future__ import annotations

import platform
import sys
from string import Template

# Slots of the context, in 8-byte words.
CLAIM, DONE, EPOCH, SLEEPERS, STOP = 0, 16, 48, 64, 80
STEP, LOCALS, LOCAL_BYTES, RESUME = 32, 33, 34, 35
CONTEXT_WORDS = 96
# RESUME is 1 + the step whose chunks `run` left when its budget was spent, else 0.
# Fields of a step, in 8-byte words.
STEP_FN, STEP_ARGS, STEP_CHUNKS, STEP_POLL = 0, 1, 2, 3
STEP_WORDS = 4

FUNCTIONS = ("trireme_cpu_run", "trireme_cpu_worker", "trireme_cpu_stop")

_FUTEX = {"x86_64": 202, "amd64": 202, "aarch64": 98, "arm64": 98}
_PAUSE = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "aarch64": 'call void asm sideeffect "yield", ""()',
}


def has_futex() -> bool:
    """Whether workers can sleep inside native code on this system."""
    return sys.platform == "linux" and platform.machine().lower() in _FUTEX


def runtime_ir(futex: bool) -> str:
    """Return the IR of `run`, `worker` and `stop` for this system."""
    machine = platform.machine().lower()
    sleep, wake = _parking(machine) if futex else ("br label %leave\nafter_sleep:", "")
    return Template(_IR).substitute(
        PAUSE=_PAUSE.get({"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine), ""),
        CLOCK=1 if sys.platform == "linux" else 6,  # CLOCK_MONOTONIC, as time.perf_counter uses
        SLEEP=sleep,
        WAKE=wake,
        DONE=DONE,
        STEP=STEP,
        LOCALS=LOCALS,
        LOCAL_BYTES=LOCAL_BYTES,
        RESUME=RESUME,
        EPOCH=EPOCH,
        SLEEPERS=SLEEPERS,
        STOP=STOP,
    )


def _parking(machine: str) -> tuple[str, str]:
    """Return the instructions that sleep while the epoch is %seen, and that wake all sleepers."""
    number = _FUTEX[machine]
    wait = f"call i64 (i64, ...) @syscall(i64 {number}, ptr %epoch, i32 128, i32 %seen, ptr null)"
    wake = f"call i64 (i64, ...) @syscall(i64 {number}, ptr %epoch, i32 129, i32 2147483647)"
    return f"%slept = {wait}\n  br label %after_sleep\nafter_sleep:", f"%woken = {wake}"


_IR = r"""
declare void @llvm.x86.sse2.pause()
declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()

define internal i64 @now() {
  %t = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 $CLOCK, ptr %t)
  %s = load i64, ptr %t
  %p = getelementptr i64, ptr %t, i64 1
  %n = load i64, ptr %p
  %b = mul i64 %s, 1000000000
  %v = add i64 %b, %n
  ret i64 %v
}

; Take a chunk of the published step: its index, or -1 when none is left.
define internal i64 @take(ptr %c) {
entry:
  br label %again
again:
  %old = load atomic i64, ptr %c acquire, align 8
  %left = trunc i64 %old to i32
  %any = icmp sgt i32 %left, 0
  br i1 %any, label %try, label %none
try:
  %new = sub i64 %old, 1
  %pair = cmpxchg weak ptr %c, i64 %old, i64 %new acq_rel acquire
  %ok = extractvalue { i64, i1 } %pair, 1
  br i1 %ok, label %taken, label %again
taken:
  %ps = getelementptr i64, ptr %c, i64 $STEP
  %s = load ptr, ptr %ps
  %pn = getelementptr i64, ptr %s, i64 2
  %n = load i64, ptr %pn
  %l = zext i32 %left to i64
  %i = sub i64 %n, %l
  ret i64 %i
none:
  ret i64 -1
}

; Run a chunk of the published step and count it as done.
define internal void @work(ptr %c, i64 %chunk, i64 %who) {
  %ps = getelementptr i64, ptr %c, i64 $STEP
  %s = load ptr, ptr %ps
  %fn = load ptr, ptr %s
  %pa = getelementptr i64, ptr %s, i64 1
  %args = load ptr, ptr %pa
  %local = call ptr @local(ptr %c, i64 %who)
  call void %fn(ptr %args, i64 %chunk, ptr %local)
  %pd = getelementptr i64, ptr %c, i64 $DONE
  %d = atomicrmw add ptr %pd, i64 1 release
  ret void
}

define internal ptr @local(ptr %c, i64 %who) {
  %pl = getelementptr i64, ptr %c, i64 $LOCALS
  %base = load ptr, ptr %pl
  %pb = getelementptr i64, ptr %c, i64 $LOCAL_BYTES
  %size = load i64, ptr %pb
  %off = mul i64 %who, %size
  %local = getelementptr i8, ptr %base, i64 %off
  ret ptr %local
}

define internal void @publish(ptr %c, ptr %step, i64 %chunks) {
entry:
  %ps = getelementptr i64, ptr %c, i64 $STEP
  store ptr %step, ptr %ps
  %pd = getelementptr i64, ptr %c, i64 $DONE
  store atomic i64 0, ptr %pd monotonic, align 8
  %old = load atomic i64, ptr %c monotonic, align 8
  %gen = lshr i64 %old, 32
  %next = add i64 %gen, 1
  %high = shl i64 %next, 32
  %word = or i64 %high, %chunks
  %was = atomicrmw xchg ptr %c, i64 %word seq_cst
  %psl = getelementptr i64, ptr %c, i64 $SLEEPERS
  %asleep = load atomic i64, ptr %psl seq_cst, align 8
  %some = icmp sgt i64 %asleep, 0
  br i1 %some, label %wake, label %out
wake:
  %epoch = getelementptr i64, ptr %c, i64 $EPOCH
  %e = atomicrmw add ptr %epoch, i32 1 seq_cst
  $WAKE
  br label %out
out:
  ret void
}

; Wait until all chunks are done; give the core away when that takes long.
define internal void @join(ptr %c, i64 %chunks) {
entry:
  %pd = getelementptr i64, ptr %c, i64 $DONE
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %k1, %more ]
  %d = load atomic i64, ptr %pd acquire, align 8
  %all = icmp eq i64 %d, %chunks
  br i1 %all, label %out, label %wait
wait:
  $PAUSE
  %k1 = add i64 %k, 1
  %low = and i64 %k1, 4095
  %long = icmp eq i64 %low, 0
  br i1 %long, label %give, label %more
give:
  %y = call i32 @sched_yield()
  br label %more
more:
  br label %look
out:
  ret void
}

; Run steps[first..last) and return the next step to run: less than last when `budget` nanoseconds
; were spent, so that Python may look after signals. stamps (null for none) gets two times a step.
define i64 @trireme_cpu_run(ptr %c, ptr %steps, i64 %first, i64 %last, i64 %budget, ptr %stamps) {
entry:
  %start = call i64 @now()
  %deadline = add i64 %start, %budget
  %mine = call ptr @local(ptr %c, i64 0)
  %stamped = icmp ne ptr %stamps, null
  %presume = getelementptr i64, ptr %c, i64 $RESUME
  br label %head
head:
  %i = phi i64 [ %first, %entry ], [ %i1, %next ]
  %more = icmp slt i64 %i, %last
  br i1 %more, label %step, label %out
step:
  %off = mul i64 %i, 4
  %s = getelementptr i64, ptr %steps, i64 %off
  %fn = load ptr, ptr %s
  %pa = getelementptr i64, ptr %s, i64 1
  %args = load ptr, ptr %pa
  %pn = getelementptr i64, ptr %s, i64 2
  %n = load i64, ptr %pn
  %pp = getelementptr i64, ptr %s, i64 3
  %poll = load i64, ptr %pp
  %i2 = mul i64 %i, 2
  %from = getelementptr i64, ptr %stamps, i64 %i2
  br i1 %stamped, label %stamp1, label %go
stamp1:
  %resumed0 = load i64, ptr %presume
  %fresh0 = icmp eq i64 %resumed0, 0
  br i1 %fresh0, label %stamp1b, label %go
stamp1b:
  %t1 = call i64 @now()
  store i64 %t1, ptr %from
  br label %go
go:
  %single = icmp eq i64 %n, 1
  br i1 %single, label %one, label %many
one:
  call void %fn(ptr %args, i64 0, ptr %mine)
  br label %finish
many:
  %resumed = load i64, ptr %presume
  %fresh = icmp eq i64 %resumed, 0
  br i1 %fresh, label %pub, label %chunks
pub:
  call void @publish(ptr %c, ptr %s, i64 %n)
  br label %chunks
chunks:
  store i64 0, ptr %presume
  %chunk = call i64 @take(ptr %c)
  %got = icmp sge i64 %chunk, 0
  br i1 %got, label %do, label %joining
do:
  call void @work(ptr %c, i64 %chunk, i64 0)
  %polls = icmp ne i64 %poll, 0
  br i1 %polls, label %look, label %chunks
look:
  %t2 = call i64 @now()
  %late2 = icmp sgt i64 %t2, %deadline
  br i1 %late2, label %pause, label %chunks
pause:
  %here = add i64 %i, 1
  store i64 %here, ptr %presume
  ret i64 %i
joining:
  call void @join(ptr %c, i64 %n)
  br label %finish
finish:
  br i1 %stamped, label %stamp2, label %check
stamp2:
  %t3 = call i64 @now()
  %to = getelementptr i64, ptr %from, i64 1
  store i64 %t3, ptr %to
  br label %check
check:
  %polls2 = icmp ne i64 %poll, 0
  br i1 %polls2, label %look2, label %next
look2:
  %t4 = call i64 @now()
  %late4 = icmp sgt i64 %t4, %deadline
  br i1 %late4, label %stop_here, label %next
stop_here:
  %after = add i64 %i, 1
  ret i64 %after
next:
  %i1 = add i64 %i, 1
  br label %head
out:
  ret i64 %last
}

; Serve chunks as worker `who`: spin `spins` times without work, then sleep. Returns 0 when told to
; stop, 1 when it wants to sleep and can only do so in Python.
define i64 @trireme_cpu_worker(ptr %c, i64 %who, i64 %spins) {
entry:
  %pstop = getelementptr i64, ptr %c, i64 $STOP
  %psl = getelementptr i64, ptr %c, i64 $SLEEPERS
  %epoch = getelementptr i64, ptr %c, i64 $EPOCH
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ 0, %do ], [ %k1, %idle ], [ 0, %awake ]
  %chunk = call i64 @take(ptr %c)
  %got = icmp sge i64 %chunk, 0
  br i1 %got, label %do, label %none
do:
  call void @work(ptr %c, i64 %chunk, i64 %who)
  br label %look
none:
  %stop = load atomic i64, ptr %pstop acquire, align 8
  %quit = icmp ne i64 %stop, 0
  br i1 %quit, label %out, label %wait
wait:
  $PAUSE
  %k1 = add i64 %k, 1
  %tired = icmp sgt i64 %k1, %spins
  br i1 %tired, label %doze, label %idle
idle:
  br label %look
doze:
  %seen = load atomic i32, ptr %epoch seq_cst, align 8
  %n = atomicrmw add ptr %psl, i64 1 seq_cst
  %word = load atomic i64, ptr %c seq_cst, align 8
  %left = trunc i64 %word to i32
  %work = icmp sgt i32 %left, 0
  %stop2 = load atomic i64, ptr %pstop seq_cst, align 8
  %quit2 = icmp ne i64 %stop2, 0
  %stay = or i1 %work, %quit2
  br i1 %stay, label %awake, label %sleep
sleep:
  $SLEEP
  br label %awake
awake:
  %m = atomicrmw sub ptr %psl, i64 1 seq_cst
  br label %look
leave:
  %m2 = atomicrmw sub ptr %psl, i64 1 seq_cst
  ret i64 1
out:
  ret i64 0
}

; Tell every worker to return.
define void @trireme_cpu_stop(ptr %c) {
  %pstop = getelementptr i64, ptr %c, i64 $STOP
  store atomic i64 1, ptr %pstop seq_cst, align 8
  %epoch = getelementptr i64, ptr %c, i64 $EPOCH
  %e = atomicrmw add ptr %epoch, i32 1 seq_cst
  $WAKE
  ret void
}
"""
