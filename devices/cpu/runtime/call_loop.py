"""IR of the worker pool: the caller's loop over the steps of a call.

Names in dollars are the slots that native.py lays out.
"""

RUN = r"""
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
  %late2 = call i1 @is_late(i64 %deadline)
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
  %late4 = call i1 @is_late(i64 %deadline)
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
