"""IR of the worker pool: the loop of a worker, and the order to all of them to end.

Names in dollars are the slots that native.py lays out.
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
  call void @wake_workers(ptr %c)
  ret void
}
"""
