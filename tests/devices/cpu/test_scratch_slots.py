"""The scratch memory of open programs: no overlaps at any size, and little more than a packing."""

import random
from collections import namedtuple
from functools import partial

import numpy as np
import pytest

from trireme.backend.registry import open_device
from trireme.devices.cpu.compile.scratch_slots import scratch_slots
from trireme.devices.cpu.runtime.slot_places import SLOT_ALIGN, slot_places
from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.support.timing import seconds_of

Uses = namedtuple("Uses", "reads writes")
"""What a step reads and writes."""


def random_graph(rng):
    """A graph of sums and products of rows and columns: values of n, m, n x m and n x n."""
    b = GraphBuilder("slots")
    kinds = {(d, e): [] for d in ("n", "m", 3) for e in ("n", "m", 5)}
    for k, (kind, made) in enumerate(kinds.items()):
        made.append(b.input(f"x{k}", TensorType(kind, "float32")))
    for _ in range(rng.randrange(5, 40)):
        left, right = rng.choice(list(kinds)), rng.choice(list(kinds))
        if left[1] == right[0]:
            made = b.add("matmul", rng.choice(kinds[left]), rng.choice(kinds[right]))
            kinds[left[0], right[1]].append(made)
        else:
            kinds[left].append(b.add("add", *(rng.choice(kinds[left]) for _ in range(2))))
    return b.finish(*(made[-1] for made in kinds.values()))


def sizes_of(graph, slots, sizes):
    """The bytes of each slot where symbols have these sizes."""
    rooms = []
    for slot in slots:
        shapes = [graph.type(value).shape for value in slot.members]
        rooms.append(max(4 * np.prod([sizes.get(d, d) for d in shape]) for shape in shapes))
    return rooms


@pytest.mark.parametrize("seed", range(60))
def test_values_of_common_lives_never_overlap(seed):
    print("seed", seed)
    rng = random.Random(seed)
    graph = random_graph(rng)
    steps = [Uses(node.used, node.outputs) for node in graph.nodes]
    slots = scratch_slots(graph, steps, {value: value for value in graph.values}, {})
    slot_of = {member: k for k, slot in enumerate(slots) for member in slot.members}
    outside = {*graph.inputs, *graph.outputs}
    assert sorted(slot_of) == sorted(set(graph.values) - outside)
    lives = {}
    for at, step in enumerate(steps):
        for value in (*step.reads, *step.writes):
            if value in slot_of:
                lives[value] = (lives.get(value, (at, at))[0], at)
    for _ in range(5):
        sizes = {name: rng.choice([1, 2, 7, 64, 1000]) for name in ("n", "m")}
        room = sizes_of(graph, slots, sizes)
        begins, nbytes = slot_places(room, [slot.below for slot in slots])
        assert all(begin % SLOT_ALIGN == 0 for begin in begins)
        spans = [(begin, begin + n) for begin, n in zip(begins, room, strict=True)]
        assert max((end for _, end in spans), default=0) <= nbytes
        for a, mine in lives.items():
            for b, other in lives.items():
                if a < b and mine[0] <= other[1] and other[0] <= mine[1]:
                    (start, end), (low, high) = spans[slot_of[a]], spans[slot_of[b]]
                    assert slot_of[a] != slot_of[b] and (end <= low or high <= start), (a, b, sizes)


def slots_of_unlike_values(count):
    """The slots of a chain of values of as many shapes, of which two live at a time."""
    b = GraphBuilder("chain")
    first = x = b.input("x", TensorType(("n", 2), "float32"))
    for _ in range(count):
        x = b.add("concat", x, first, axis=1)
    graph = b.finish(x)
    steps = [Uses(node.used, node.outputs) for node in graph.nodes]
    return partial(scratch_slots, graph, steps, {value: value for value in graph.values}, {})


def test_many_values_take_time_in_proportion():
    few, many = (slots_of_unlike_values(count) for count in (500, 4000))
    assert len(few()) == 499 and max(len(slot.below) for slot in few()) <= 2
    least = min(seconds_of(many) for _ in range(3))  # other processes have the cores at times
    assert least < 40 * seconds_of(few), "eight times the values, forty times as long"


def image_net():
    """A net whose images shrink while their channels grow, with a residual in each stage."""
    rng = np.random.default_rng(3)
    b = GraphBuilder("images")
    x = b.input("x", TensorType((1, "h", "w", 8), "float32"))
    channels = 8
    for _ in range(4):
        for stride, out in ((1, 2 * channels), (2, 2 * channels), (1, 2 * channels)):
            inner = b.type(x).shape[-1]
            w = b.constant(f"w{len(b.nodes)}", rng.random((out, 3, 3, inner), np.float32))
            pads = {"pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
            x = b.add("conv", x, w, None, strides=(stride, stride), **pads)
        y = b.add("relu", x)
        x = b.add("add", x, y)
        channels *= 2
    return b.finish(x)


@pytest.mark.parametrize("size", [(32, 32), (224, 224), (320, 64), (96, 800)])
def test_images_take_no_more_memory_than_in_a_program_of_their_size(size):
    graph = image_net()
    device = open_device("cpu", threads=1, winograd=False)
    (every,) = device.compile_polymorphic([graph])
    one = bind_shapes(graph, {"x": (1, *size, 8)})
    assert every.at(one).scratch_bytes <= 1.05 * device.compile([one])[0].scratch_bytes
