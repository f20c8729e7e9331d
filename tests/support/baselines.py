"""How others place, as assignments of the same problems: what trireme's search is compared with.

Written apart from the search, from the descriptions of what each runtime does.
"""

from itertools import permutations

from trireme.placement.problem import CALLER


def fallback(problem, i, without=()):
    """Where a node goes that its runtime's accelerator refuses: the cpu, else the fastest."""
    able = [d for d in problem.able[i] if d not in without] or problem.able[i]
    return 0 if 0 in able else min(able, key=lambda d: problem.own_s(i, d))


def partitions(problem, device):
    """The sets of nodes that a delegate would take, as TFLite makes them: sweeps that take all
    nodes of one kind (supported, not supported) whose inputs are there, then all of the other.
    """
    left, done, found = set(range(problem.n)), set(), []
    supported = True
    while left:
        taken = []
        grew = True
        while grew:
            grew = False
            for i in sorted(left):
                kind = device in problem.able[i]
                if kind == supported and all(j in done for j in problem.before[i]):
                    taken.append(i)
                    left.discard(i)
                    done.add(i)
                    grew = True
        if taken and supported:
            found.append(taken)
        supported = not supported
    return found


def all_partitions(problem):
    """TFLite with a delegate: every partition it supports, whatever it costs."""
    for device in range(1, problem.k):
        yield tuple(
            device if device in problem.able[i] else fallback(problem, i) for i in range(problem.n)
        )


def largest_partition(problem):
    """TFLite with at most one partition a delegate: the one with the most nodes."""
    for device in range(1, problem.k):
        largest = set(max(partitions(problem, device), key=len, default=()))
        yield tuple(
            device if i in largest else fallback(problem, i, (device,)) for i in range(problem.n)
        )


def priority_greedy(problem):
    """OpenVINO's HETERO: each node on the first device of a list that supports it."""
    for order in permutations(range(problem.k)):
        yield tuple(next(d for d in order if d in able) for able in problem.able)


def heft(problem):
    """Heterogeneous earliest finish time, with insertion (Topcuoglu, Hariri, Wu, 2002)."""
    n = problem.n
    rank = [0.0] * n
    for i in reversed(range(n)):
        able = problem.able[i]
        mean = sum(problem.own_s(i, d) for d in able) / len(able)
        below = [rank[j] + _mean_copy(problem, i, j) for j in problem.next[i]]
        rank[i] = mean + max(below, default=0.0)
    busy = [[] for _ in range(problem.groups)]
    finish, where = [0.0] * n, [CALLER] * n
    for i in sorted(range(n), key=lambda i: (-rank[i], i)):
        ways = []
        for d in problem.able[i]:
            ready = max(
                [_arrival(problem, v, m, d, finish, where) for v, m in problem.inputs[i]],
                default=0.0,
            )
            start = _gap(busy[problem.group[d]], ready, problem.own_s(i, d))
            ways.append((start + problem.own_s(i, d), d, start))
        finish[i], where[i], start = min(ways)
        busy[problem.group[where[i]]].append((start, finish[i]))
        busy[problem.group[where[i]]].sort()
    yield tuple(where)


def _mean_copy(problem, i, j):
    values = [v for v, m in problem.inputs[j] if m == i]
    pairs = [(s, t) for s in range(problem.spaces) for t in range(problem.spaces) if s != t]
    if not pairs:
        return 0.0
    return sum(problem.copy_s(v, s, t) for v in values for s, t in pairs) / len(pairs)


def _arrival(problem, value, maker, device, finish, where):
    source = problem.space[where[maker]] if maker != CALLER else 0
    made = finish[maker] if maker != CALLER else 0.0
    return made + problem.copy_s(value, source, problem.space[device])


def _gap(busy, ready, length):
    start = ready
    for first, last in busy:
        if start + length <= first:
            return start
        start = max(start, last)
    return start


BASELINES = {
    "all partitions (TFLite)": all_partitions,
    "largest partition": largest_partition,
    "device priority (HETERO)": priority_greedy,
    "HEFT": heft,
}
