"""Programs with control flow in a Session on default devices, against ONNX Runtime."""

import numpy as np
import pytest
from programs import BRANCH, PROGRAMS, peer

from trireme.placement.explain import explain
from trireme.runtime.session.session import Session


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_programs_run_with_no_device_named(program):
    model = program.model()
    with Session(model) as session:
        for feeds in program.feeds:
            found, wanted = session.run(feeds), peer(model, feeds)
            assert found.keys() == wanted.keys()
            for name, right in wanted.items():
                assert found[name].dtype == right.dtype and found[name].shape == right.shape
                np.testing.assert_allclose(found[name], right, rtol=1e-5, atol=1e-6)


def test_the_host_that_nobody_named_takes_control_flow_alone():
    with Session(BRANCH.model()) as session:
        where = {n.op: session.placement.device_of[n.id] for n in session.graph.nodes}
        assert where == {"neg": "cpu", "if": "host"}
        (page,) = [p for n, p in explain(session.placement).nodes if n.op == "if"]
        assert "the host drives control flow" in page[0].why
        assert page[1].why == "the host drives control flow: cpu compiles no if"
