"""What a stranger is told: kinds with their codes, and texts without folders and addresses."""

import http

import numpy as np
import pytest
from raw_http import Wire, json_request, tensor
from served import serving, sum_graph
from zoo import CHECKOUT

import trireme
from trireme.serving.errors import CODES, ServingError, as_serving_error, public_text
from trireme.serving.models import SessionModel
from trireme.support.errors import CancelledError, DeadlineError, QueueFullError

X = np.ones((2, 3), np.float32)
PAIR = [tensor("x", X, "FP32"), tensor("y", X, "FP32")]


def test_every_kind_has_codes():
    names = "OK CANCELLED INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND PERMISSION_DENIED INTERNAL"
    names += " RESOURCE_EXHAUSTED FAILED_PRECONDITION UNIMPLEMENTED UNAVAILABLE UNAUTHENTICATED"
    for kind, code in CODES.items():
        assert code.grpc in names.split(), kind
        assert code.http == 499 or http.HTTPStatus(code.http) and code.http >= 400
    assert ServingError("busy", "x").code.http == 429
    with pytest.raises(KeyError):
        _ = ServingError("odd", "x").code


@pytest.mark.parametrize(
    "text, public",
    [
        ("cannot read /home/me/models/net/1/model.onnx: no", "cannot read model.onnx: no"),
        ("'/srv/a b'", "'a b'"),
        ("~/models/x.trm and ../up/y.trm", "x.trm and y.trm"),
        ("<object at 0x7f3a12345678>", "<object at 0x...>"),
        ("shape [1, 2] of onnx:Conv_1/2", "shape [1, 2] of onnx:Conv_1/2"),
        ("input 'a/b/c' is 3 m/s", "input 'a/b/c' is 3 m/s"),
    ],
)
def test_texts_without_folders(text, public):
    assert public_text(text) == public


@pytest.mark.parametrize(
    "error, kind",
    [
        (trireme.RunError("x"), "invalid"),
        (trireme.ShapeError("x"), "invalid"),
        (DeadlineError("x"), "deadline"),
        (CancelledError("x"), "cancelled"),
        (QueueFullError("x"), "busy"),
        (trireme.DeviceError("/etc/device is gone"), "internal"),
        (trireme.InternalError("x"), "internal"),
        (MemoryError(), "internal"),
        (OSError(2, "no", "/etc/secret"), "internal"),
    ],
)
def test_kinds_of_errors_of_a_run(error, kind):
    told = as_serving_error(error)
    assert told.kind == kind and "/etc" not in str(told)


class Broken(SessionModel):
    def run(self, feeds, timeout_s=None):
        raise RuntimeError("secret of /root/models at 0x7f3a12345678")


def test_a_fault_of_a_model_is_a_500_that_tells_nothing(caplog):
    with serving({"sum": sum_graph()}, {"sum": Broken}) as server, Wire(server) as wire:
        answer = wire.ask(json_request("/v2/models/sum/infer", PAIR))
        assert answer.status == 500 and answer.error == "the model failed: RuntimeError"
        assert wire.ask(json_request("/v2/models/sum/infer", PAIR)).status == 500
    assert "secret" in caplog.text  # the server's log has it


def test_the_tests_that_the_promises_name_are_there():
    import re

    for path in re.findall(r"`(tests/[\w/.]+)`", (CHECKOUT / "SECURITY.md").read_text()):
        assert (CHECKOUT / path).exists(), path
