"""IR of the worker pool: the loop over steps of the caller, and the loop of a worker.

Names in dollars are the slots that native.py lays out.
"""

RUN = r"""
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
  %epoch = getelementptr i64, ptr %c, i64 $EPOCH
  %e = atomicrmw add ptr %epoch, i32 1 seq_cst
  $WAKE
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

; Run a call's steps: 0 when all are done, 1 when its budget of nanoseconds is spent, for Python
; to look after signals and call again. stamps (null for none) gets two times a step.
define i64 @trireme_cpu_run(ptr %call) {
entry:
  %mine = alloca i64
  %c = load ptr, ptr %call
  %psteps = getelementptr i64, ptr %call, i64 $CALL_STEPS
  %steps = load ptr, ptr %psteps
  %pcount = getelementptr i64, ptr %call, i64 $CALL_COUNT
  %count = load i64, ptr %pcount
  %pstamps = getelementptr i64, ptr %call, i64 $CALL_STAMPS
  %stamps = load ptr, ptr %pstamps
  %stamped = icmp ne ptr %stamps, null
  %pat = getelementptr i64, ptr %call, i64 $CALL_AT
  %pmine = getelementptr i64, ptr %call, i64 $CALL_MINE
  %pmode = getelementptr i64, ptr %call, i64 $CALL_MODE
  %ptries = getelementptr i64, ptr %call, i64 $CALL_TRIES
  %tries = load i64, ptr %ptries
  %trying = icmp ne i64 %tries, 0
  %pstart = getelementptr i64, ptr %call, i64 $CALL_START
  %at = load i64, ptr %pat
  %resumed = load i64, ptr %pmine
  %plane = getelementptr i64, ptr %call, i64 $CALL_LANE
  %kept = load i64, ptr %plane
  %enters = icmp eq i64 %kept, 0
  br i1 %enters, label %entering, label %entered
entering:
  %fresh_lane = call i64 @enter(ptr %c)
  %number1 = add i64 %fresh_lane, 1
  store i64 %number1, ptr %plane
  br label %entered
entered:
  %lane1 = load i64, ptr %plane
  %lane = sub i64 %lane1, 1
  %local = call ptr @local(ptr %c, i64 %lane)
  store i64 %resumed, ptr %mine
  %share = call ptr @share(ptr %c, i64 0)
  %pbudget = getelementptr i64, ptr %call, i64 $CALL_BUDGET
  %budget = load i64, ptr %pbudget
  %timed = icmp ne i64 %budget, 0
  br i1 %trying, label %note_start, label %started
note_start:
  %ts = call i64 @now()
  store i64 %ts, ptr %pstart
  br label %started
started:
  br i1 %timed, label %clock, label %begin
clock:
  %t0 = call i64 @now()
  %d0 = add i64 %t0, %budget
  br label %begin
begin:
  %deadline = phi i64 [ 0, %started ], [ %d0, %clock ]
  br label %head
head:
  %i = phi i64 [ %at, %begin ], [ %i1, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %step, label %out
step:
  %off = mul i64 %i, $STEP_WORDS
  %s = getelementptr i64, ptr %steps, i64 %off
  %fn = load ptr, ptr %s
  %pa = getelementptr i64, ptr %s, i64 $STEP_ARGS
  %args = load ptr, ptr %pa
  %pn = getelementptr i64, ptr %s, i64 $STEP_CHUNKS
  %n = load i64, ptr %pn
  %pb = getelementptr i64, ptr %s, i64 $STEP_BASE
  %base = load i64, ptr %pb
  %pp = getelementptr i64, ptr %s, i64 $STEP_POLL
  %poll = load i64, ptr %pp
  %polls = icmp ne i64 %poll, 0
  %i2 = mul i64 %i, 2
  %stamp = getelementptr i64, ptr %stamps, i64 %i2
  br i1 %stamped, label %stamp1, label %go
stamp1:
  %m0 = load i64, ptr %mine
  %fresh0 = icmp eq i64 %m0, 0
  br i1 %fresh0, label %stamp1b, label %go
stamp1b:
  %t1 = call i64 @now()
  store i64 %t1, ptr %stamp
  br label %go
go:
  %single = icmp eq i64 %n, 1
  br i1 %single, label %one, label %many
one:
  call void %fn(ptr %args, i64 %base, ptr %local)
  br label %finish
many:
  %m1 = load i64, ptr %mine
  %fresh = icmp eq i64 %m1, 0
  br i1 %fresh, label %choose, label %resume
choose:
  %threads = call i64 @team(ptr %c, ptr %call)
  %some = icmp ne i64 %threads, 0
  br i1 %some, label %pub, label %own
pub:
  call void @publish(ptr %c, ptr %s, i64 %n, i64 %threads)
  br label %own
resume:
  br label %own

; The next chunk: in order when alone, else of this thread's share, else of another's.
own:
  %mode = load i64, ptr %pmode
  %together = icmp eq i64 %mode, $TOGETHER
  br i1 %together, label %team, label %solo
solo:
  %k0 = load i64, ptr %mine
  %left = icmp slt i64 %k0, %n
  br i1 %left, label %do, label %finish
team:
  %taken = call i64 @take(ptr %share, i1 true)
  %got = icmp sge i64 %taken, 0
  br i1 %got, label %do, label %others
do:
  %chunk = phi i64 [ %k0, %solo ], [ %taken, %team ]
  %number = add i64 %base, %chunk
  call void %fn(ptr %args, i64 %number, ptr %local)
  br label %did
others:
  %stole = call i1 @steal(ptr %c, i64 0, ptr %local)
  br i1 %stole, label %did, label %joining
did:
  %m2 = load i64, ptr %mine
  %m3 = add i64 %m2, 1
  store i64 %m3, ptr %mine
  br i1 %polls, label %look, label %own
look:
  %t2 = call i64 @now()
  %late2 = icmp sgt i64 %t2, %deadline
  br i1 %late2, label %pause, label %own
joining:
  %m4 = load i64, ptr %mine
  %theirs = sub i64 %n, %m4
  call void @join(ptr %c, i64 %theirs)
  br label %finish

pause:
  store i64 %i, ptr %pat
  %m5 = load i64, ptr %mine
  store i64 %m5, ptr %pmine
  ret i64 1

finish:
  store i64 0, ptr %mine
  br i1 %stamped, label %stamp2, label %check
stamp2:
  %t3 = call i64 @now()
  %to = getelementptr i64, ptr %stamp, i64 1
  store i64 %t3, ptr %to
  br label %check
check:
  br i1 %polls, label %look2, label %next
look2:
  %t4 = call i64 @now()
  %late4 = icmp sgt i64 %t4, %deadline
  br i1 %late4, label %stop_here, label %next
stop_here:
  %after = add i64 %i, 1
  store i64 %after, ptr %pat
  store i64 0, ptr %pmine
  ret i64 1
next:
  %i1 = add i64 %i, 1
  br label %head

out:
  store i64 0, ptr %pat
  store i64 0, ptr %pmine
  %mode9 = load i64, ptr %pmode
  %none = icmp eq i64 %mode9, 0
  br i1 %none, label %return, label %end
end:
  store i64 0, ptr %pmode
  %has_team = icmp eq i64 %mode9, $TOGETHER
  br i1 %has_team, label %disband, label %parking
disband:
  call void @disband(ptr %c)
  br label %parking
parking:
  %pparks = getelementptr i64, ptr %call, i64 $CALL_PARKS
  %parks = load i64, ptr %pparks
  %to_park = icmp ne i64 %parks, 0
  br i1 %to_park, label %park, label %ended
park:
  %pstop = getelementptr i64, ptr %c, i64 $STOP
  %was_stop = cmpxchg ptr %pstop, i64 0, i64 $PARKED seq_cst seq_cst
  br label %ended
ended:
  br i1 %trying, label %note, label %return
note:
  %t8 = load i64, ptr %pstart
  %undisturbed = icmp ne i64 %t8, 0
  br i1 %undisturbed, label %time, label %return
time:
  %t9 = call i64 @now()
  %plast = getelementptr i64, ptr %c, i64 $LAST_RUN
  store i64 %t9, ptr %plast
  %took = sub i64 %t9, %t8
  call void @learn(ptr %call, i64 %took)
  br label %return
return:
  store i64 0, ptr %plane
  call void @leave(ptr %c, i64 %lane)
  ret i64 0
}
"""

WORKER = r"""
; Serve chunks as worker `who`: spin `spins` times without work, or until parked, or until other
; calls need its core, then sleep.
; Returns 0 when told to stop, 1 when it wants to sleep and can only do so in Python.
define i64 @trireme_cpu_worker(ptr %c, i64 %who, i64 %spins) {
entry:
  %pstop = getelementptr i64, ptr %c, i64 $STOP
  %psl = getelementptr i64, ptr %c, i64 $SLEEPERS
  %epoch = getelementptr i64, ptr %c, i64 $EPOCH
  %pactive = getelementptr i64, ptr %c, i64 $ACTIVE
  %pd = getelementptr i64, ptr %c, i64 $DONE
  %share = call ptr @share(ptr %c, i64 %who)
  %pt = getelementptr i64, ptr %c, i64 $THREADS
  %threads = load i64, ptr %pt
  %which = add i64 %who, $MOST_LANES
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ 0, %stolen ], [ %k1, %idling ], [ 0, %awake ], [ 0, %yield ]
  br label %own
own:
  %count = phi i64 [ 0, %look ], [ %count1, %do ]
  %chunk = call i64 @take(ptr %share, i1 true)
  %got = icmp sge i64 %chunk, 0
  br i1 %got, label %do, label %none
do:
  %local = call ptr @local(ptr %c, i64 %which)
  call void @work(ptr %share, i64 %chunk, ptr %local)
  %count1 = add i64 %count, 1
  br label %own
none:
  %did = icmp ne i64 %count, 0
  br i1 %did, label %report, label %looked
report:
  %d0 = atomicrmw add ptr %pd, i64 %count release
  br label %others
looked:
  %low = and i64 %k, 255
  %seldom = icmp eq i64 %low, 0
  br i1 %seldom, label %others, label %rest
others:
  %again = phi i64 [ 0, %report ], [ %k, %looked ]
  %local2 = call ptr @local(ptr %c, i64 %which)
  %stole = call i1 @steal(ptr %c, i64 %who, ptr %local2)
  br i1 %stole, label %stolen, label %rest
stolen:
  %d1 = atomicrmw add ptr %pd, i64 1 release
  br label %look
rest:
  %k0 = phi i64 [ %k, %looked ], [ %again, %others ]
  %stop = load atomic i64, ptr %pstop acquire, align 8
  %quit = icmp eq i64 %stop, $STOPPED
  br i1 %quit, label %out, label %wait
wait:
  $PAUSE
  %k1 = add i64 %k0, 1
  %spun = icmp sgt i64 %k1, %spins
  %parked = icmp eq i64 %stop, $PARKED
  %tires = or i1 %spun, %parked
  %running = call i64 @running(ptr %c)
  %cores = add i64 %running, %who
  %crowded = icmp sgt i64 %cores, %threads
  %long = or i1 %tires, %crowded
  br i1 %long, label %tired, label %idle
idle:
  %some = and i64 %k1, $POLITE
  %polite = icmp eq i64 %some, 0
  br i1 %polite, label %give, label %idling
give:
  %given = call i32 @sched_yield()
  br label %idling
idling:
  br label %look
tired:
  %busy = load atomic i64, ptr %pactive acquire, align 8
  %runs = icmp ne i64 %busy, 0
  br i1 %runs, label %yield, label %doze
yield:
  %y = call i32 @sched_yield()
  br label %look
doze:
  %seen = load atomic i32, ptr %epoch seq_cst, align 8
  %n = atomicrmw add ptr %psl, i64 1 seq_cst
  %busy2 = load atomic i64, ptr %pactive seq_cst, align 8
  %stop2 = load atomic i64, ptr %pstop seq_cst, align 8
  %runs2 = icmp ne i64 %busy2, 0
  %quit2 = icmp eq i64 %stop2, $STOPPED
  %stay = or i1 %runs2, %quit2
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
  store atomic i64 $STOPPED, ptr %pstop seq_cst, align 8
  %epoch = getelementptr i64, ptr %c, i64 $EPOCH
  %e = atomicrmw add ptr %epoch, i32 1 seq_cst
  $WAKE
  ret void
}
"""
