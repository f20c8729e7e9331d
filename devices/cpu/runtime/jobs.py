"""IR of a server: a thread that runs the jobs of a queue in order, and counters to wait for.

A counter is a line: how far it has come, and how many sleep until it goes further. A server has two
(jobs that were submitted, jobs that are over) and a ring of jobs. A job is a call of the pool and
what must be over before it begins: counters of servers with where they must have come. So a job of
one device waits for jobs of others without Python.

Names in dollars are the slots that native.py lays out. Needs a futex.
"""

JOBS = r"""
; Wait until a counter has come to a goal: 1; 0 if it slept for the timeout (null: for ever) first.
define i64 @trireme_cpu_await(ptr %counter, i64 %goal, i64 %spins, ptr %timeout) {
entry:
  %pw = getelementptr i64, ptr %counter, i64 $COUNTER_WAITERS
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %k1, %again ]
  %v = load atomic i64, ptr %counter acquire, align 8
  %there = icmp sge i64 %v, %goal
  br i1 %there, label %yes, label %spin
spin:
  %tired = icmp sge i64 %k, %spins
  br i1 %tired, label %doze, label %pause
pause:
  $PAUSE
  %k1 = add i64 %k, 1
  %low = and i64 %k1, 63
  %polite = icmp eq i64 %low, 0
  br i1 %polite, label %yield, label %again
yield:
  %y = call i32 @sched_yield()
  br label %again
again:
  br label %look
doze:
  %w = atomicrmw add ptr %pw, i64 1 seq_cst
  %v2 = load atomic i64, ptr %counter seq_cst, align 8
  %there2 = icmp sge i64 %v2, %goal
  br i1 %there2, label %awake, label %sleep
sleep:
  %seen = trunc i64 %v2 to i32
  $COUNTER_WAIT
  br label %awake
awake:
  %x = atomicrmw sub ptr %pw, i64 1 seq_cst
  %v3 = load atomic i64, ptr %counter acquire, align 8
  %there3 = icmp sge i64 %v3, %goal
  br i1 %there3, label %yes, label %not
not:
  %forever = icmp eq ptr %timeout, null
  br i1 %forever, label %doze, label %no
yes:
  ret i64 1
no:
  ret i64 0
}

; Let a counter go one further, and wake who sleeps for it.
define void @trireme_cpu_advance(ptr %counter) {
entry:
  %v = atomicrmw add ptr %counter, i64 1 seq_cst
  %pw = getelementptr i64, ptr %counter, i64 $COUNTER_WAITERS
  %w = load atomic i64, ptr %pw seq_cst, align 8
  %some = icmp sgt i64 %w, 0
  br i1 %some, label %wake, label %out
wake:
  $COUNTER_WAKE
  br label %out
out:
  ret void
}

; Run jobs: 0 when one says to stop, 1 when the next is one that Python must run and count.
define i64 @trireme_cpu_serve(ptr %server, i64 %spins) {
entry:
  %done = getelementptr i64, ptr %server, i64 $JOBS_DONE
  br label %next
next:
  %n = load i64, ptr %done
  %goal = add i64 %n, 1
  %got = call i64 @trireme_cpu_await(ptr %server, i64 %goal, i64 %spins, ptr null)
  %slot = urem i64 %n, $RING
  %off = mul i64 %slot, $JOB_WORDS
  %from = add i64 %off, $JOBS
  %job = getelementptr i64, ptr %server, i64 %from
  %pcount = getelementptr i64, ptr %job, i64 $JOB_AFTER
  %count = load i64, ptr %pcount
  br label %head
head:
  %k = phi i64 [ 0, %next ], [ %k1, %hold ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %hold, label %begin
hold:
  %k1 = add i64 %k, 1
  %two = mul i64 %k1, 2
  %pc = getelementptr i64, ptr %job, i64 %two
  %counter = load ptr, ptr %pc
  %one = add i64 %two, 1
  %pg = getelementptr i64, ptr %job, i64 %one
  %until = load i64, ptr %pg
  %came = call i64 @trireme_cpu_await(ptr %counter, i64 %until, i64 %spins, ptr null)
  br label %head
begin:
  %word = load i64, ptr %job
  %special = icmp ult i64 %word, 2
  br i1 %special, label %leave, label %run
run:
  %call = inttoptr i64 %word to ptr
  %left = call i64 @trireme_cpu_run(ptr %call)
  %again = icmp ne i64 %left, 0
  br i1 %again, label %run, label %over
over:
  call void @trireme_cpu_advance(ptr %done)
  br label %next
leave:
  ret i64 %word
}
"""
