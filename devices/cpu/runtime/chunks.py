"""IR of the worker pool: shares of chunks, how they are published, taken and waited for.

Names in dollars are the slots that native.py lays out.
"""

CHUNKS = r"""
declare void @llvm.x86.sse2.pause()
declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
declare i64 @llvm.ctpop.i64(i64)
declare i64 @llvm.cttz.i64(i64, i1)

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

define internal i1 @is_late(i64 %deadline) alwaysinline {
  %t = call i64 @now()
  %late = icmp sgt i64 %t, %deadline
  ret i1 %late
}

; Wake all workers that sleep.
define internal void @wake_workers(ptr %c) {
  %epoch = getelementptr i64, ptr %c, i64 $EPOCH
  %e = atomicrmw add ptr %epoch, i32 1 seq_cst
  $WAKE
  ret void
}

define internal ptr @share(ptr %c, i64 %who) alwaysinline {
  %o = mul i64 %who, $LINE
  %w = add i64 %o, $SHARES
  %p = getelementptr i64, ptr %c, i64 %w
  ret ptr %p
}

; The memory of a lane, or of worker `who` as MOST_LANES + who. It may move to a larger place; then
; what was there stays readable for calls that began before.
define internal ptr @local(ptr %c, i64 %which) {
  %pl = getelementptr i64, ptr %c, i64 $LOCALS
  %place = load atomic ptr, ptr %pl acquire, align 8
  %base = load ptr, ptr %place
  %pb = getelementptr i64, ptr %place, i64 1
  %size = load i64, ptr %pb
  %off = mul i64 %which, %size
  %local = getelementptr i8, ptr %base, i64 %off
  ret ptr %local
}

; The number of calls under way.
define internal i64 @running(ptr %c) alwaysinline {
  %p = getelementptr i64, ptr %c, i64 $LANES
  %lanes = load atomic i64, ptr %p seq_cst, align 8
  %count = call i64 @llvm.ctpop.i64(i64 %lanes)
  ret i64 %count
}

; Take the first lane that is free; where all are taken, look again and again.
define internal i64 @enter(ptr %c) {
entry:
  %p = getelementptr i64, ptr %c, i64 $LANES
  br label %look
look:
  %old = load atomic i64, ptr %p monotonic, align 8
  %free = xor i64 %old, -1
  %none = icmp eq i64 %free, 0
  br i1 %none, label %wait, label %try
wait:
  %y = call i32 @sched_yield()
  br label %look
try:
  %lane = call i64 @llvm.cttz.i64(i64 %free, i1 true)
  %bit = shl i64 1, %lane
  %new = or i64 %old, %bit
  %pair = cmpxchg weak ptr %p, i64 %old, i64 %new seq_cst monotonic
  %ok = extractvalue { i64, i1 } %pair, 1
  br i1 %ok, label %in, label %look
in:
  ret i64 %lane
}

define internal void @leave(ptr %c, i64 %lane) alwaysinline {
  %p = getelementptr i64, ptr %c, i64 $LANES
  %bit = shl i64 1, %lane
  %others = xor i64 %bit, -1
  %old = atomicrmw and ptr %p, i64 %others seq_cst
  ret void
}

; Take a chunk of a share, from its front or its back: its index, or -1 when none is left.
define internal i64 @take(ptr %share, i1 %front) alwaysinline {
entry:
  br label %again
again:
  %old = load atomic i64, ptr %share acquire, align 8
  %high = lshr i64 %old, 20
  %from = and i64 %high, $MOST_CHUNKS
  %to = and i64 %old, $MOST_CHUNKS
  %any = icmp ult i64 %from, %to
  br i1 %any, label %try, label %none
try:
  %last = sub i64 %to, 1
  %chunk = select i1 %front, i64 %from, i64 %last
  %change = select i1 %front, i64 1048576, i64 -1
  %new = add i64 %old, %change
  %pair = cmpxchg weak ptr %share, i64 %old, i64 %new acq_rel acquire
  %ok = extractvalue { i64, i1 } %pair, 1
  br i1 %ok, label %taken, label %again
taken:
  ret i64 %chunk
none:
  ret i64 -1
}

; Run a chunk of the step that a share names.
define internal void @work(ptr %share, i64 %chunk, ptr %local) alwaysinline {
  %ps = getelementptr i64, ptr %share, i64 1
  %s = load ptr, ptr %ps
  %fn = load ptr, ptr %s
  %pa = getelementptr i64, ptr %s, i64 $STEP_ARGS
  %args = load ptr, ptr %pa
  %pb = getelementptr i64, ptr %s, i64 $STEP_BASE
  %base = load i64, ptr %pb
  %number = add i64 %base, %chunk
  call void %fn(ptr %args, i64 %number, ptr %local)
  ret void
}

; Take a chunk from the back of another thread's share and run it: whether there was one.
define internal i1 @steal(ptr %c, i64 %who, ptr %local) {
entry:
  %pt = getelementptr i64, ptr %c, i64 $THREADS
  %threads = load i64, ptr %pt
  br label %next
next:
  %k = phi i64 [ 1, %entry ], [ %k1, %miss ]
  %more = icmp ult i64 %k, %threads
  br i1 %more, label %try, label %none
try:
  %v0 = add i64 %who, %k
  %over = icmp uge i64 %v0, %threads
  %v1 = sub i64 %v0, %threads
  %victim = select i1 %over, i64 %v1, i64 %v0
  %share = call ptr @share(ptr %c, i64 %victim)
  %chunk = call i64 @take(ptr %share, i1 false)
  %got = icmp sge i64 %chunk, 0
  br i1 %got, label %do, label %miss
miss:
  %k1 = add i64 %k, 1
  br label %next
do:
  call void @work(ptr %share, i64 %chunk, ptr %local)
  ret i1 true
none:
  ret i1 false
}

; Give each of the first so many threads its share of a step: the workers first, thread 0 never less
; than another.
define internal void @publish(ptr %c, ptr %step, i64 %chunks, i64 %threads) {
entry:
  %pd = getelementptr i64, ptr %c, i64 $DONE
  store atomic i64 0, ptr %pd monotonic, align 8
  %pg = getelementptr i64, ptr %c, i64 $GENERATION
  %g = load i64, ptr %pg
  %g1 = add i64 %g, 1
  store i64 %g1, ptr %pg
  %high = shl i64 %g1, 40
  %round = sub i64 %threads, 1
  br label %next
next:
  %who = phi i64 [ %threads, %entry ], [ %t, %stored ]
  %end = phi i64 [ %chunks, %entry ], [ %from, %stored ]
  %t = sub i64 %who, 1
  %product = mul i64 %t, %chunks
  %up = add i64 %product, %round
  %from = udiv i64 %up, %threads
  %some = icmp ult i64 %from, %end
  br i1 %some, label %give, label %stored
give:
  %share = call ptr @share(ptr %c, i64 %t)
  %ps = getelementptr i64, ptr %share, i64 1
  store ptr %step, ptr %ps
  %f = shl i64 %from, 20
  %w = or i64 %f, %end
  %word = or i64 %w, %high
  store atomic i64 %word, ptr %share release, align 8
  br label %stored
stored:
  %more = icmp ugt i64 %t, 0
  br i1 %more, label %next, label %out
out:
  ret void
}

; Wait until the workers did so many chunks; give the core away when that takes long.
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
  %low = and i64 %k1, $POLITE
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
"""
