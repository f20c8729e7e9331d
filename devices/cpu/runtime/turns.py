"""IR of the loop over turns: it runs two calls of the pool by turns, without Python between them.

Names in dollars are the slots that native.py lays out.
"""

REPEAT = r"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Copy what a table of (place, start, step, bytes) says for a turn, to the places or from them.
define internal void @turn_copies(ptr %table, i64 %count, i64 %turn, i1 %to_place) {
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %copy ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %copy, label %out
copy:
  %o = mul i64 %k, 4
  %pplace = getelementptr i64, ptr %table, i64 %o
  %place = load ptr, ptr %pplace
  %pstart = getelementptr i64, ptr %pplace, i64 1
  %start = load i64, ptr %pstart
  %pstep = getelementptr i64, ptr %pplace, i64 2
  %step = load i64, ptr %pstep
  %pbytes = getelementptr i64, ptr %pplace, i64 3
  %bytes = load i64, ptr %pbytes
  %by = mul i64 %step, %turn
  %at = add i64 %start, %by
  %there = inttoptr i64 %at to ptr
  %target = select i1 %to_place, ptr %place, ptr %there
  %source = select i1 %to_place, ptr %there, ptr %place
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  %k1 = add i64 %k, 1
  br label %head
out:
  ret void
}

; Whether a flag of a table of (flag, number) is set.
define internal i1 @any_fault(ptr %table, i64 %count) {
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %look ]
  %all = phi i64 [ 0, %entry ], [ %all1, %look ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %look, label %out
look:
  %o = mul i64 %k, 2
  %pflag = getelementptr i64, ptr %table, i64 %o
  %flag = load i64, ptr %pflag
  %all1 = or i64 %all, %flag
  %k1 = add i64 %k, 1
  br label %head
out:
  %any = icmp ne i64 %all, 0
  ret i1 %any
}

; Run turns: 0 when all are done, 1 when the budget is spent between two turns, 2 when it is spent
; inside a turn, which the next call goes on with. A turn with a fault ends them, and is not done.
define i64 @trireme_cpu_repeat(ptr %r) {
entry:
  %pturn = getelementptr i64, ptr %r, i64 $REPEAT_TURN
  %pmost = getelementptr i64, ptr %r, i64 $REPEAT_MOST
  %most = load i64, ptr %pmost
  %pnumber = getelementptr i64, ptr %r, i64 $REPEAT_NUMBER
  %number = load ptr, ptr %pnumber
  %numbered = icmp ne ptr %number, null
  %pasked = getelementptr i64, ptr %r, i64 $REPEAT_ASKED
  %asked = load ptr, ptr %pasked
  %asks = icmp ne ptr %asked, null
  %pinside = getelementptr i64, ptr %r, i64 $REPEAT_INSIDE
  %pmoves = getelementptr i64, ptr %r, i64 $REPEAT_TABLES
  %moves = load ptr, ptr %pmoves
  %pmove_count = getelementptr i64, ptr %pmoves, i64 1
  %move_count = load i64, ptr %pmove_count
  %pslices = getelementptr i64, ptr %pmoves, i64 2
  %slices = load ptr, ptr %pslices
  %pslice_count = getelementptr i64, ptr %pmoves, i64 3
  %slice_count = load i64, ptr %pslice_count
  %prows = getelementptr i64, ptr %pmoves, i64 4
  %rows = load ptr, ptr %prows
  %prow_count = getelementptr i64, ptr %pmoves, i64 5
  %row_count = load i64, ptr %prow_count
  %pfaults = getelementptr i64, ptr %r, i64 $REPEAT_FAULTS
  %pfault_count = getelementptr i64, ptr %r, i64 $REPEAT_FAULT_COUNT
  %fault_count = load i64, ptr %pfault_count
  %pbudget = getelementptr i64, ptr %r, i64 $REPEAT_BUDGET
  %budget = load i64, ptr %pbudget
  %begun = call i64 @now()
  %deadline = add i64 %begun, %budget
  br label %head
head:
  %turn = load i64, ptr %pturn
  %inside = load i64, ptr %pinside
  %resumes = icmp ne i64 %inside, 0
  %odd = and i64 %turn, 1
  br i1 %resumes, label %go, label %fresh
fresh:
  %more = icmp slt i64 %turn, %most
  br i1 %more, label %prepare, label %done
prepare:
  br i1 %numbered, label %write, label %moving
write:
  store i64 %turn, ptr %number
  br label %moving
moving:
  br label %move_head
move_head:
  %k = phi i64 [ 0, %moving ], [ %k1, %move ]
  %left = icmp slt i64 %k, %move_count
  br i1 %left, label %move, label %moved
move:
  %o = mul i64 %k, 4
  %o1 = add i64 %o, %odd
  %pslot = getelementptr i64, ptr %moves, i64 %o1
  %slot = load ptr, ptr %pslot
  %o2 = add i64 %o, 2
  %pstart = getelementptr i64, ptr %moves, i64 %o2
  %start = load i64, ptr %pstart
  %pstep = getelementptr i64, ptr %pstart, i64 1
  %step = load i64, ptr %pstep
  %by = mul i64 %step, %turn
  %at = add i64 %start, %by
  store i64 %at, ptr %slot
  %k1 = add i64 %k, 1
  br label %move_head
moved:
  call void @turn_copies(ptr %slices, i64 %slice_count, i64 %turn, i1 true)
  br label %go
go:
  %pcall = getelementptr i64, ptr %r, i64 %odd
  %call = load ptr, ptr %pcall
  %ended = call i64 @trireme_cpu_run(ptr %call)
  store i64 %ended, ptr %pinside
  %paused = icmp ne i64 %ended, 0
  br i1 %paused, label %inner, label %after
inner:
  ret i64 2
after:
  %pfault = getelementptr i64, ptr %pfaults, i64 %odd
  %fault = load ptr, ptr %pfault
  %wrong = call i1 @any_fault(ptr %fault, i64 %fault_count)
  br i1 %wrong, label %done, label %kept
kept:
  call void @turn_copies(ptr %rows, i64 %row_count, i64 %turn, i1 false)
  %next = add i64 %turn, 1
  store i64 %next, ptr %pturn
  br i1 %asks, label %ask, label %look
ask:
  %answer = load i8, ptr %asked
  %on = icmp ne i8 %answer, 0
  br i1 %on, label %look, label %done
look:
  %low = and i64 %next, 15
  %seldom = icmp eq i64 %low, 0
  br i1 %seldom, label %clock, label %head
clock:
  %late = call i1 @is_late(i64 %deadline)
  br i1 %late, label %pause, label %head
pause:
  ret i64 1
done:
  ret i64 0
}
"""
