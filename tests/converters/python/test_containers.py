"""Containers and arrays that a program changes: right on all paths, or refused with the line."""

from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
from same_as_python import expect_same, in_python

import trireme

SEED = 41


def queue(x):
    waiting, total = deque([1, 2, 3, 4]), x[0]
    while waiting:
        total = total * 2 + waiting.popleft()
    return total


def breadth_first(x):
    edges = {0: [1, 2], 1: [3], 2: [3, 0], 3: []}
    seen, waiting, total = {0}, deque([0]), x[0]
    while waiting:
        node = waiting.popleft()
        total = total + x[node] * len(seen)
        for other in edges[node]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return total


def last_two(x):
    kept = deque(maxlen=2)
    for i in range(4):
        kept.append(x[i] * 2)
    if x[0] > 0:
        kept[0] = kept[1] + 1
    return kept[0], kept[-1]


def groups(x):
    sums = defaultdict(float)
    for i in range(4):
        if x[i] > 0:
            sums[i % 2] = sums[i % 2] + x[i]
        else:
            sums[i % 2] -= 1
    return sums[0], sums[1], sums["none"]


def counted(x):
    letters = Counter("abca")
    if x[0] > 0:
        x = x * letters["a"] + letters["z"]
    letters["b"] += 1
    return x * letters["b"]


def ordered(x):
    parts = OrderedDict(a=x[0], b=x[1])
    if x[0] > 0:
        parts["a"] = x[2]
    parts.move_to_end("a")
    return list(parts.values())


def the_same_set(x):
    kept = {1}
    other = kept
    if x[0] > 0:
        kept.add(2)
    else:
        kept.add(2)
    return x * len(other)


def views(x):
    parts = {"a": x[0], "b": x[1] * 2, "c": -x[2]}
    return sum(parts.values()), sum(v * len(k) for k, v in parts.items())


def smallest(x):
    import heapq

    heap = []
    for one in (3, 1, 2):
        heapq.heappush(heap, one)
    return x * heapq.heappop(heap)


def sorted_at_once(x):
    order = np.array([2, 0, 1])
    order.sort()
    if x[0] > 0:
        order = order + 1
    return x[order]


def counted_at_places(x):
    counts, halves = [0] * 4, [0.0, 1.0]
    for one in [*x, *x, *x, *x, *x]:
        counts[int(abs(one))] += 1
        halves[-1 if one > 0 else 0] += one
    return counts, halves


def rows_of_rows(x):
    table = np.zeros((3, 2, 4))
    rows = [x * 1, x * 2]
    for i in range(3):
        table[i][i % 2] = x
        table[i][1][1:] += i
        rows[i % 2][i] = x[0]
        rows[1][int(x[0] > 0)] *= 2
    table[int(x[1] > 0)][:, 0] = 7
    return table, rows


def rows_at_a_vector(x):
    taken, doubled = x[[2, 0, 1]], x.repeat(2)
    taken[0] = 5
    doubled[1:3] = taken[1:]
    return taken, doubled, x


def made_anew_in_turns(x):
    last = np.ones(4) / 4
    for _ in range(40):
        new = np.full(4, 0.1)
        for i in range(4):
            new[i] += last[i - 1] * np.tanh(x[i])
        if abs(new - last).sum() < 1e-9:
            break
        last = new
    last = last * 1
    last[0] = 5
    return last, new


PROGRAMS = [
    counted_at_places,
    rows_of_rows,
    rows_at_a_vector,
    made_anew_in_turns,
    queue,
    breadth_first,
    last_two,
    groups,
    counted,
    ordered,
    the_same_set,
    views,
    smallest,
    sorted_at_once,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_capture_gives_what_python_gives(program):
    rng = np.random.default_rng(SEED)
    cases = [(rng.normal(size=4).clip(-3.9, 3.9),) for _ in range(8)]
    captured = trireme.capture(program, *cases[0], fallback=False)
    for case in cases:
        expect_same(captured(*case), in_python(program, case), (SEED, case))


def added_on_a_path(x):
    seen = set()
    if x[0] > 0:
        seen.add(1)
    return x * len(seen)


def added_in_turns(x):
    seen = set()
    for one in x:
        seen.add(len(seen))
        x = x + one
    return x * len(seen)


def queued_on_a_path(x):
    waiting = deque([1])
    if x[0] > 0:
        waiting.append(2)
    return x * len(waiting)


def sorted_on_a_path(x):
    order = np.array([2.0, 0.0, 1.0])
    if x[0] > 0:
        order.sort()
    return order * x[0]


def filled_in_turns(x):
    total = np.zeros((2, 2))
    for one in x:
        np.fill_diagonal(total, total[0, 0] + 1)
        x = x + one
    return total * x[0]


def written_on_a_path(x):
    total = np.zeros(3)
    if x[0] > 0:
        np.add(total, 1, out=total)
    return total * x[0]


def read_on(x):
    numbers = iter([1.0, 2.0, 3.0])
    total = x[0]
    while total > 1:
        total = total - next(numbers)
    return total


def added_tensor(x):
    seen = {0}
    seen.add(x[0])
    return x


def found_in_a_list(x):
    values = [x[0], x[1]]
    values.remove(1.0)
    return values[0]


def filtered_in_turns(x):
    waiting, kept = list(np.argsort(x)), []
    while waiting:
        first = waiting.pop(0)
        kept.append(first)
        waiting = [one for one in waiting if x[one] > x[first] + 1]
    return kept


def read_while_it_grows(x):
    sums = [x[0]]
    for i in range(20):
        sums.append(sums[i - 1] + x[1])
    return sums[-1]


def changed_at_a_row(x):
    table = np.stack([x, x])
    row = table[int(x[0] > 0)]
    row[0] = 1
    return table


def left_to_another(x):
    kept = x * 0
    last = kept
    for i in range(20):
        if x[0] > i:
            kept = x * i
        kept[0] += 1
        last = kept
    return last


BAD = {
    filtered_in_turns: ("waiting = [one", "a comprehension keeps items by a tensor's value"),
    read_while_it_grows: (
        "sums.append",
        "not every turn appends an item",
    ),
    changed_at_a_row: ("row[0] = 1", "row shares its elements with table"),
    left_to_another: ("for i in range(20):", "kept shares its elements with last"),
    added_on_a_path: ("return x", "seen is a set of 1 on one path and a set of 0 on another"),
    added_in_turns: ("seen.add", "seen is a set of 0 before the loop and a set of 1 after a turn"),
    queued_on_a_path: ("return x", "waiting is a deque of 2 on one path and a deque of 1"),
    sorted_on_a_path: ("order.sort()", "ndarray.sort changes an array in a branch or a loop"),
    filled_in_turns: ("np.fill_diagonal", "fill_diagonal changes an array in a branch or a loop"),
    written_on_a_path: ("np.add", "add changes an array in a branch or a loop"),
    read_on: ("numbers = iter", "numbers is an iterator"),
    added_tensor: ("seen.add", "add of a set compares tensors"),
    found_in_a_list: ("values.remove", "remove of a list compares tensors"),
}


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("program", BAD, ids=lambda program: program.__name__)
def test_what_differs_by_the_path_is_refused_at_its_line(program, fallback):
    line, sentence = BAD[program]
    with pytest.raises(trireme.ConvertError) as raised:
        trireme.capture(program, np.ones(4), fallback=fallback)
    assert any(line in fact and sentence in fact for fact in raised.value.facts), raised.value


def test_a_queue_among_the_arguments():
    def newest(queue):
        return queue[-1] + len(queue)

    case = deque([np.float64(1), np.float64(2)])
    assert trireme.capture(newest, case)(case) == newest(case) == 4


def test_a_module_that_the_function_imports_is_followed(tmp_path, monkeypatch):
    (tmp_path / "own_settings.py").write_text("SCALE = 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)

    def scaled(x):
        import own_settings

        return x * own_settings.SCALE

    captured = trireme.capture(scaled, np.float64(3))
    assert captured(np.float64(3)) == 6
    import own_settings

    own_settings.SCALE = 5.0
    with pytest.raises(trireme.RunError, match=r"own_settings.SCALE changed"):
        captured(np.float64(3))
