"""Command streams: encoding, refusal of damaged ones, barriers, SRAM, disassembly."""

from dataclasses import replace

import numpy as np
import pytest
from npu import Int8Builder, Run

from trireme.backend.registry import open_device
from trireme.devices.npu.compiler.compile import compile_graph
from trireme.devices.npu.simulator.simulate import execute
from trireme.devices.npu.simulator.timing import simulate_cycles
from trireme.devices.npu.spec import load_spec
from trireme.devices.npu.stream.access import reads, writes
from trireme.devices.npu.stream.codec import decode, encode
from trireme.devices.npu.stream.commands import ENGINE_OF, ENGINES, Barrier, Command, Dma, Matrix
from trireme.devices.npu.stream.disassemble import disassemble
from trireme.devices.npu.stream.verify import verify
from trireme.ir.interpreter import interpret
from trireme.support.errors import CompileError, DeviceError

SEED = 11


def machine(sram_bytes):
    spec = load_spec("mobile")
    return replace(spec, sram=replace(spec.sram, bytes=sram_bytes))


def net(channels=16, images=1):
    """A net with a long skip, so that something has to leave a small SRAM."""
    b = Int8Builder(np.random.default_rng(SEED))
    x = b.conv(b.feed(images, 24, 20, 3), channels, activation="relu")
    y = b.conv(x, channels, groups=channels)
    y = b.conv(y, 2 * channels, kernel=1)
    y = b.conv(y, channels, kernel=1)
    y = b.op("add", x, y)
    y = b.op("sigmoid", y)
    y = b.op("concat", y, b.op("mul", y, x), axis=3)
    return b, b.finish(y)


@pytest.fixture(scope="module")
def task():
    return compile_graph(machine(16 << 10), net()[1]).task


def test_streams_survive_encoding(task):
    assert decode(encode(task)) == task


def conflicts(task, spec):
    """Pairs of commands that overlap in time, touch the same bytes, and one of them writes."""
    spans = simulate_cycles(spec, task).commands
    timed = [
        (c.work, *span)
        for c, span in zip(task.commands, spans, strict=True)
        if not isinstance(c.work, Barrier)
    ]
    found = []
    for i, (a, a_start, a_end) in enumerate(timed):
        for b, b_start, b_end in timed[i + 1 :]:
            if a_start < b_end and b_start < a_end:
                pairs = [(w, e) for w in writes(a) for e in (*reads(b), *writes(b))]
                pairs += [(w, e) for w in writes(b) for e in reads(a)]
                if any(p[0] == q[0] and p[1] < q[2] and q[1] < p[2] for p, q in pairs):
                    found.append((a, b))
    return found


@pytest.mark.parametrize("sram_bytes", [4 << 10, 16 << 10, 64 << 10, 1 << 20])
@pytest.mark.parametrize("name", ["mobile", "systolic_32x32", "ethos_u55_256"])
def test_no_two_commands_race(name, sram_bytes):
    spec = load_spec(name)
    spec = replace(spec, sram=replace(spec.sram, bytes=sram_bytes))
    made = compile_graph(spec, net()[1]).task
    assert conflicts(made, spec) == []
    assert verify(spec, made).regions[0].nbytes <= sram_bytes


@pytest.mark.parametrize("sram_bytes", [16 << 10, 64 << 10])
def test_tiles_of_several_images_do_not_race(sram_bytes):
    made = compile_graph(machine(sram_bytes), net(images=5)[1]).task
    assert conflicts(made, machine(sram_bytes)) == []


@pytest.mark.parametrize("name", ["mobile", "systolic_32x32", "ethos_u55_256"])
def test_a_command_takes_as_many_images_as_fit(name):
    """So that a batch is no more commands than an image, and no more cycles than its images."""

    def batch(images):
        b = Int8Builder(np.random.default_rng(SEED))
        graph = b.finish(b.conv(b.feed(images, 8, 8, 3), 16))
        task = compile_graph(load_spec(name), graph, arguments_inside=True).task
        matrix = sum(isinstance(command.work, Matrix) for command in task.commands)
        return matrix, simulate_cycles(load_spec(name), task).cycles

    (one, cycles), (many, most) = batch(1), batch(50)
    assert many <= 2 and one <= 2
    assert cycles < most <= 50 * cycles


def test_barriers_are_what_prevents_races(task):
    spec = machine(16 << 10)
    bare = replace(
        task, commands=tuple(c for c in task.commands if not isinstance(c.work, Barrier))
    )
    assert conflicts(bare, spec)


def test_every_barrier_waits_for_something_new():
    """Neither its engine nor what that has waited for knew of it: a barrier costs cycles."""
    task = compile_graph(machine(64 << 10), net()[1]).task
    known = {engine: dict.fromkeys(ENGINES, 0) for engine in ENGINES}
    then = {engine: [] for engine in ENGINES}  # what was known at each command
    for command in task.commands:
        work = command.work
        if not isinstance(work, Barrier):
            then[ENGINE_OF[type(work)]].append(dict(known[ENGINE_OF[type(work)]]))
            continue
        mine = known[work.engine]
        new = {other: getattr(work, other) for other in ENGINES}
        new = {other: count for other, count in new.items() if count > mine[other]}
        assert new, work
        for other, count in new.items():
            behind = then[other][count - 1] | {other: count}
            mine |= {third: max(mine[third], behind[third]) for third in ENGINES}


def test_any_order_that_barriers_allow_gives_the_same_bits():
    builder, graph = net()
    spec = machine(16 << 10)
    compiled = compile_graph(spec, graph)
    starts = [start for start, _ in simulate_cycles(spec, compiled.task).commands]
    results = []
    for order in (range(len(starts)), sorted(range(len(starts)), key=lambda i: (starts[i], i))):
        memory = [np.full(r.nbytes, 0xA5, np.uint8) for r in compiled.task.regions]
        memory[1] = compiled.constants.build()
        memory[3][:] = builder.feeds[graph.inputs[0]].reshape(-1).view(np.uint8)
        for index in order:
            execute(compiled.task.commands[index].work, memory)
        results.append(memory[-1])
    want = interpret(graph, builder.feeds)[graph.outputs[0]]
    for result in results:
        np.testing.assert_array_equal(result.view(np.int8), want.reshape(-1), f"seed {SEED}")


def test_stores_overlap_with_compute():
    """With room for two buffers a streamed layer takes little more than its slower engine."""
    b = Int8Builder(np.random.default_rng(SEED))
    graph = b.finish(b.conv(b.feed(1, 64, 64, 32), 32))
    spec = machine(64 << 10)
    timeline = simulate_cycles(spec, compile_graph(spec, graph).task)
    (node,) = timeline.nodes
    assert timeline.cycles < 1.25 * max(node.busy.values())
    assert timeline.cycles < 0.95 * sum(node.busy.values())


def change(task, kind, **fields):
    """The task with fields of its first command of a kind changed."""
    made = list(task.commands)
    index = next(i for i, c in enumerate(made) if isinstance(c.work, kind))
    made[index] = Command(replace(made[index].work, **fields), made[index].node)
    return replace(task, commands=tuple(made))


def first(task, kind):
    return next(c.work for c in task.commands if isinstance(c.work, kind))


BROKEN = {
    "leave the": lambda t: change(t, Dma, target=replace(first(t, Dma).target, offset=1 << 20)),
    "region 99 does not exist": lambda t: change(
        t, Dma, source=replace(first(t, Dma).source, region=99)
    ),
    "not on SRAM": lambda t: change(
        t, Matrix, ifm=replace(first(t, Matrix).ifm, region=3, offset=0)
    ),
    "different shapes": lambda t: change(
        t, Dma, target=replace(first(t, Dma).target, shape=(1, 1, 1, 7))
    ),
    "an empty view": lambda t: change(
        t, Matrix, ofm=replace(first(t, Matrix).ofm, shape=(1, 0, 1, 1))
    ),
    "it waits for 999 dma commands": lambda t: change(t, Barrier, dma=999),
    "a kernel, stride or dilation of 0": lambda t: change(
        t, Matrix, window=replace(first(t, Matrix).window, stride_h=0)
    ),
    "writes constants": lambda t: change(
        t, Dma, target=replace(first(t, Dma).source, region=1, offset=0)
    ),
    "dtypes do not fit": lambda t: change(t, Matrix, weights_dtype="float16"),
    "it needs 99999 bytes of SRAM": lambda t: replace(
        t, regions=(replace(t.regions[0], nbytes=99999), *t.regions[1:])
    ),
    "node 77 does not exist": lambda t: replace(
        t, commands=(*t.commands, Command(t.commands[-1].work, 77))
    ),
    "it was made for 'other', this machine is": lambda t: replace(t, device="other"),
    "are not in order": lambda t: replace(t, regions=t.regions[1:]),
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_broken_streams_are_refused(task, sentence):
    with pytest.raises(DeviceError, match=sentence):
        verify(machine(16 << 10), decode(encode(BROKEN[sentence](task))))


@pytest.mark.parametrize("data", [b"", b"TRNP", b"\0" * 64, b"\x10\0\0\0TRNP" + b"\xff" * 40])
def test_what_is_no_stream_is_refused(data):
    with pytest.raises(DeviceError):
        decode(data)


def test_damaged_streams_never_leave_memory(task):
    """Random bytes are changed: what still verifies stays inside its regions."""
    spec, rng = machine(16 << 10), np.random.default_rng(SEED)
    good = encode(task)
    refused = 0
    for _ in range(150):
        data = bytearray(good)
        for place in rng.integers(0, len(data), 3):
            data[place] = int(rng.integers(0, 256))
        try:
            broken = verify(spec, decode(bytes(data)))
        except DeviceError:
            refused += 1
            continue
        if sum(r.nbytes for r in broken.regions) < 1 << 24:
            memory = [np.zeros(r.nbytes, np.uint8) for r in broken.regions]
            for command in broken.commands:
                execute(command.work, memory)
    assert refused > 10, f"seed {SEED}"


def test_disassembly(task):
    text = disassemble(encode(task))
    lines = text.splitlines()
    assert lines[0].startswith("task for mobile: ")
    assert any(line.startswith("conv #0") for line in lines)
    for word in ("dma      dma", "matrix   matrix", "vector   binary", "barrier  matrix waits for"):
        assert word in text
    numbered = [line for line in lines if line.split()[0].isdigit()]
    assert len(numbered) == len(task.commands)


def test_too_small_an_sram_is_a_compile_error():
    _, graph = net()
    with pytest.raises(CompileError, match="bytes of SRAM"):
        compile_graph(machine(256), graph)


def test_constants_are_packed_once_and_tile_by_tile():
    builder, graph = net()
    device = open_device("npu", sram_bytes=16 << 10)
    run = Run(device, graph, builder.feeds)
    weights = sum(graph.values[n.inputs[1]].data.nbytes for n in graph.nodes if n.op == "conv")
    assert weights <= run.executable.constant_bytes <= 3 * weights + (64 << 10)
    device.close()
