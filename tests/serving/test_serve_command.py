"""`trireme serve` as a process: its options, signals and exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from commands import call, save_small
from raw_http import Wire, get, json_request, outputs_of, tensor

pytest.importorskip("uvicorn")

X = np.ones((1, 6, 6, 3), np.float32)
GOOD = json_request("/v2/models/small/infer", [tensor("x", X, "FP32")])

SLOW = """
import sys, time
from trireme.runtime.session.session import Session
run = Session.run
def slow(*given, **named):
    time.sleep(float(sys.argv.pop()))
    sys.argv.append("0")
    return run(*given, **named)
arguments, seconds = sys.argv[1:-1], sys.argv[-1]
import trireme.tools.cli, trireme.serving.warm
sys.argv[-1] = "0"
def begin():
    Session.run = slow
    sys.argv[-1] = seconds
from trireme.tools import serve
emit = serve.emit
def ready(*given):
    begin()
    emit(*given)
serve.emit = ready
sys.exit(trireme.tools.cli.main(arguments))
"""
"""`trireme` whose first run for a client takes the seconds of the last argument."""


class Process:
    """A server that was started by its command."""

    def __init__(self, *arguments, code=("-m", "trireme")):
        self.process = subprocess.Popen(
            [sys.executable, *code, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"serving at \w+://[^ ]+:(\d+)", line)
            if found:
                self.http_port = int(found[1])
                return
        raise AssertionError("".join(self.lines) + self.process.stderr.read())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def end(self, which=signal.SIGTERM):
        self.process.send_signal(which)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@pytest.fixture
def model(tmp_path):
    return save_small(tmp_path / "small.trm")


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal(model, which):
    with Process("serve", model, "--http", "0", "--threads", "1") as server:
        assert "small version 1: ready\n" in server.lines
        with Wire(server) as wire:
            assert wire.ask(get("/v2/health/ready")).status == 200
            assert outputs_of(wire.ask(GOOD))["z"].shape == (1, 6, 6, 4)
        code, errors = server.end(which)
        assert code == 0 and "Traceback" not in errors, errors


def test_a_repository_a_token_and_grpc(model, tmp_path):
    folder = tmp_path / "models" / "net" / "3"
    folder.mkdir(parents=True)
    os.rename(model, folder / "model.trm")
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "serve.toml").write_text(
        '[server]\nrepository = "models"\ntoken_file = "token"\nhttp = 1\n'
        "[limits]\nmax_queue = 3\n[defaults]\nthreads = 1\n"
    )
    config = str(tmp_path / "serve.toml")
    with Process("serve", "--config", config, "--http", "0", "--grpc", "0") as server:
        assert any(re.fullmatch(r"gRPC at 127.0.0.1:[1-9]\d+\n", line) for line in server.lines)
        with Wire(server) as wire:
            assert wire.ask(get("/v2/models/net")).status == 401
            told = wire.ask(get("/v2/models/net", "Authorization: Bearer abc"))
            assert json.loads(told.body)["versions"] == ["3"]
        assert server.end()[0] == 0


def test_sigterm_finishes_what_was_accepted(model):
    slow = ("-c", SLOW)
    with Process("serve", model, "--http", "0", "1.0", code=slow) as server:
        got = []

        def ask():
            with Wire(server, 20) as wire:
                got.append(wire.ask(GOOD))

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        with Wire(server) as wire:
            assert wire.ask(get("/v2/health/ready")).status == 503
            assert wire.ask(GOOD).status == 503
        code = server.process.wait(20)
        asking.join(20)
        assert code == 0 and got[0].status == 200
        assert outputs_of(got[0])["z"].shape == (1, 6, 6, 4)


def test_a_second_signal_ends_it_at_once(model):
    slow = ("-c", SLOW)
    with Process("serve", model, "--http", "0", "8", code=slow) as server, Wire(server) as wire:
        wire.send(GOOD)
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        began = time.perf_counter()
        code, errors = server.end()
        assert code == 1 and time.perf_counter() - began < 3
        assert "second signal" in errors


def test_a_run_that_does_not_end_in_time_does_not_keep_the_process(model):
    arguments = ("serve", model, "--http", "0", "--grace", "0.2", "30")
    with Process(*arguments, code=("-c", SLOW)) as server, Wire(server) as wire:
        wire.send(GOOD)
        time.sleep(0.3)
        began = time.perf_counter()
        code, errors = server.end()
        assert code == 1 and time.perf_counter() - began < 10
        assert "not done within the grace" in errors
        assert wire.answer().status == 503


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        ((), 2, "there is nothing to serve"),
        (("no.onnx",), 4, "no.onnx"),
        (("a=m.trm", "a=n.trm"), 2, "two models are called 'a'"),
        (("a b=m.trm",), 2, "'a b'"),
        (("m.trm", "--http", "70000"), 2, "70000"),
        (("m.trm", "--config", "no.toml"), 4, "no.toml"),
        (("m.trm", "--token-file", "no.txt"), 4, "token_file"),
    ],
)
def test_what_cannot_be_served_says_why(capsys, tmp_path, monkeypatch, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    try:
        got, _, err = call(capsys, "serve", *arguments)
    except SystemExit as end:
        got, err = end.code, capsys.readouterr().err
    assert got == code and says in err, err


def test_without_the_extra_it_says_what_to_install(model):
    code = (
        "import sys; sys.modules['uvicorn'] = None; import trireme.tools.cli as c;"
        f"sys.exit(c.main(['serve', {model!r}]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 2 and "pip install 'trireme-engine[serve]'" in run.stderr
    code = "import sys; sys.modules['uvicorn'] = sys.modules['starlette'] = None; import trireme"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
