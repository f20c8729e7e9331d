"""IR of the worker pool: whether a call shares its steps with the workers or runs alone.

Names in dollars are the slots that native.py lays out.
"""

TEAMS = r"""
; Whether a call does its next step with the workers: 0 = alone, else the number of threads. Each
; call under way has a core, so as many workers as there are other calls rest. One call at a time
; has the team. Calls gather the workers again when they were not crowded for a while.
define internal i64 @team(ptr %c, ptr %call) {
entry:
  %pmode = getelementptr i64, ptr %call, i64 $CALL_MODE
  %mode = load i64, ptr %pmode
  %alone = icmp eq i64 %mode, $ALONE
  br i1 %alone, label %no, label %count
count:
  %pt = getelementptr i64, ptr %c, i64 $THREADS
  %threads = load i64, ptr %pt
  %running = call i64 @running(ptr %c)
  %more = sub i64 %threads, %running
  %room = icmp sgt i64 %more, 0
  %team = add i64 %more, 1
  %has = icmp eq i64 %mode, $TOGETHER
  br i1 %room, label %roomy, label %crowded
roomy:
  br i1 %has, label %yes, label %wait
wait:
  %plast = getelementptr i64, ptr %c, i64 $LAST_CROWD
  %last = load atomic i64, ptr %plast monotonic, align 8
  %never = icmp eq i64 %last, 0
  br i1 %never, label %ask, label %since
since:
  %t = call i64 @now()
  %gap = sub i64 %t, %last
  %calm = icmp sgt i64 %gap, $CALM_NS
  br i1 %calm, label %ask, label %rest
ask:
  %pteam = getelementptr i64, ptr %c, i64 $TEAM
  %pair = cmpxchg ptr %pteam, i64 0, i64 1 seq_cst seq_cst
  %got = extractvalue { i64, i1 } %pair, 1
  br i1 %got, label %decide, label %rest
decide:
  %chosen = call i64 @decide(ptr %c, ptr %call)
  store i64 %chosen, ptr %pmode
  %together = icmp eq i64 %chosen, $TOGETHER
  br i1 %together, label %yes, label %give_back
give_back:
  store atomic i64 0, ptr %pteam release, align 8
  br label %no
crowded:
  %single = icmp eq i64 %threads, 1
  br i1 %single, label %sole, label %disband
sole:
  store i64 $ALONE, ptr %pmode
  br label %no
disband:
  br i1 %has, label %go, label %note
go:
  call void @disband(ptr %c)
  br label %note
note:
  %pcrowd = getelementptr i64, ptr %c, i64 $LAST_CROWD
  %tc = call i64 @now()
  store atomic i64 %tc, ptr %pcrowd monotonic, align 8
  br label %rest
rest:
  store i64 $CROWDED, ptr %pmode
  %pstart = getelementptr i64, ptr %call, i64 $CALL_START
  store i64 0, ptr %pstart
  br label %no
yes:
  ret i64 %team
no:
  ret i64 0
}

; Let the workers sleep, and another call have them.
define internal void @disband(ptr %c) {
  %pactive = getelementptr i64, ptr %c, i64 $ACTIVE
  store atomic i64 0, ptr %pactive release, align 8
  %pteam = getelementptr i64, ptr %c, i64 $TEAM
  store atomic i64 0, ptr %pteam release, align 8
  ret void
}

; Decide how a run does steps of several chunks: 1 = alone, 2 = with the workers. A call that tries
; does four runs with them and four alone by turns, 32 of 1024, and the others in the way that was
; faster; one that counts no runs (RUNS below 0) does all in that way.
define internal i64 @decide(ptr %c, ptr %call) {
entry:
  %pt = getelementptr i64, ptr %c, i64 $THREADS
  %threads = load i64, ptr %pt
  %single = icmp eq i64 %threads, 1
  br i1 %single, label %alone, label %many
many:
  %pwakes = getelementptr i64, ptr %call, i64 $CALL_WAKES
  %wakes = load i64, ptr %pwakes
  %ptries = getelementptr i64, ptr %call, i64 $CALL_TRIES
  %tries = load i64, ptr %ptries
  %trying = icmp ne i64 %tries, 0
  br i1 %trying, label %try, label %team
try:
  %pruns = getelementptr i64, ptr %call, i64 $CALL_RUNS
  %runs = load i64, ptr %pruns
  %counts = icmp sge i64 %runs, 0
  %turn = and i64 %runs, 1023
  %phase = select i1 %counts, i64 %turn, i64 1023
  %trial = icmp ult i64 %phase, 32
  %bit = and i64 %phase, 4
  %early = icmp eq i64 %bit, 0
  %first = and i1 %trial, %early
  %pwith = getelementptr i64, ptr %call, i64 $CALL_WITH
  %with_ns = load i64, ptr %pwith
  %palone = getelementptr i64, ptr %call, i64 $CALL_ALONE
  %alone_ns = load i64, ptr %palone
  %faster = icmp sle i64 %with_ns, %alone_ns
  %not_trial = xor i1 %trial, true
  %later = and i1 %faster, %not_trial
  %together = or i1 %first, %later
  br i1 %together, label %team, label %alone
team:
  %pstop = getelementptr i64, ptr %c, i64 $STOP
  %stop = load atomic i64, ptr %pstop monotonic, align 8
  %parked = icmp eq i64 %stop, $PARKED
  br i1 %parked, label %unpark, label %gather
unpark:
  %unparked = cmpxchg ptr %pstop, i64 $PARKED, i64 0 seq_cst seq_cst
  br label %gather
gather:
  %pactive = getelementptr i64, ptr %c, i64 $ACTIVE
  %was = atomicrmw xchg ptr %pactive, i64 1 seq_cst
  %psl = getelementptr i64, ptr %c, i64 $SLEEPERS
  %asleep = load atomic i64, ptr %psl seq_cst, align 8
  %some = icmp sgt i64 %asleep, 0
  br i1 %some, label %sleeping, label %with
sleeping:
  %long = icmp ne i64 %wakes, 0
  br i1 %long, label %wake, label %short
short:
  %t = call i64 @now()
  %plast = getelementptr i64, ptr %c, i64 $LAST_RUN
  %last = load i64, ptr %plast
  %gap = sub i64 %t, %last
  %hot = icmp slt i64 %gap, $HOT
  br i1 %hot, label %wake, label %leave
wake:
  call void @wake_workers(ptr %c)
  br label %with
leave:
  store atomic i64 0, ptr %pactive release, align 8
  br label %alone
with:
  ret i64 2
alone:
  ret i64 1
}

; Count a run of a call that tries, and keep the least time of the last two of four trials. Trials
; end where four alone take 5/4 of the time of the four with workers before: caches that fill favour
; those alone. Trials that end without that are repeated after 64 runs, the first time.
define internal void @learn(ptr %call, i64 %took) {
entry:
  %pruns = getelementptr i64, ptr %call, i64 $CALL_RUNS
  %runs = load i64, ptr %pruns
  %counted = icmp sge i64 %runs, 0
  br i1 %counted, label %count, label %out
count:
  %next = add i64 %runs, 1
  store i64 %next, ptr %pruns
  %phase = and i64 %runs, 1023
  %trial = icmp ult i64 %phase, 32
  %late_bit = and i64 %phase, 2
  %late = icmp ne i64 %late_bit, 0
  %counts = and i1 %trial, %late
  br i1 %counts, label %keep, label %out
keep:
  %bit = and i64 %phase, 4
  %with = icmp eq i64 %bit, 0
  %pwith = getelementptr i64, ptr %call, i64 $CALL_WITH
  %palone = getelementptr i64, ptr %call, i64 $CALL_ALONE
  %p = select i1 %with, ptr %pwith, ptr %palone
  %old = load i64, ptr %p
  %k = and i64 %phase, 3
  %anew = icmp eq i64 %k, 2
  %less = icmp slt i64 %took, %old
  %better = or i1 %anew, %less
  br i1 %better, label %store, label %stored
store:
  store i64 %took, ptr %p
  br label %stored
stored:
  %of8 = and i64 %phase, 7
  %both = icmp eq i64 %of8, 7
  br i1 %both, label %compare, label %out
compare:
  %with_ns = load i64, ptr %pwith
  %alone_ns = load i64, ptr %palone
  %with5 = mul i64 %with_ns, 5
  %alone4 = mul i64 %alone_ns, 4
  %clear = icmp sge i64 %alone4, %with5
  br i1 %clear, label %enough, label %unclear
enough:
  %last = or i64 %runs, 31
  %ended = add i64 %last, 1
  store i64 %ended, ptr %pruns
  br label %out
unclear:
  %first_time = icmp eq i64 %runs, 31
  br i1 %first_time, label %soon, label %out
soon:
  store i64 960, ptr %pruns
  br label %out
out:
  ret void
}
"""
