"""Programs on several devices, in every mode: the same bits in all, and ONNX Runtime's answers."""

import numpy as np
import pytest
from programs import PROGRAMS, peer

from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session

DEVICES = (["cpu"], ["opencl", "cpu"], ["npu", "cpu"], ["cpu", "opencl", "npu"], ["cpu", "host"])
MODES = [
    (mode, subgraphs, execution)
    for mode in ("serial", "parallel")
    for subgraphs in ("merged", "split")
    for execution in ("sunk", "interactive")
]


@pytest.mark.parametrize("devices", DEVICES, ids="-".join)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_programs_give_the_same_bits_in_every_mode(program, devices):
    model = program.model()
    first: dict[int, dict[str, bytes]] = {}
    for mode, subgraphs, execution in MODES:
        how = ExecutionOptions(subgraphs=subgraphs, execution=execution)
        with Session(model, devices=devices, mode=mode, execution_options=how) as session:
            for k, feeds in enumerate(program.feeds):
                found = session.run(feeds)
                for name, right in peer(model, feeds).items():
                    np.testing.assert_allclose(found[name], right, rtol=1e-4, atol=1e-5)
                bits = {name: array.tobytes() for name, array in found.items()}
                assert first.setdefault(k, bits) == bits, (mode, subgraphs, execution)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_programs_are_profiled_traced_and_run_in_order(program):
    with Session(program.model()) as session:
        for feeds in program.feeds:
            want = session.run(feeds)
            session.profile(feeds, runs=2)
            found, spans = session.run_traced(feeds)
            assert [span.task for span in spans] == list(range(len(session.plan.tasks)))
            for name, right in want.items():
                np.testing.assert_array_equal(found[name], right)
