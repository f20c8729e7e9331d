"""The command line as a process: Ctrl-C at any moment, closed streams, names that do not decode."""

import os
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest
from commands import call, save_small
from zoo import CHECKOUT

import trireme
from trireme.tools import commands

TRIREME = [sys.executable, "-m", "trireme"]
INTERRUPTER = """
import importlib.abc, os, signal, sys

class Interrupter(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_small(tmp_path_factory.mktemp("model") / "small.trm")


def run(*arguments, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([*TRIREME, *arguments], timeout=120, **options)


def ctrl_c_at(module, folder):
    """Return the environment of a process that is interrupted when it imports a module."""
    (folder / "sitecustomize.py").write_text(INTERRUPTER.format(module=module))
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("module", ["numpy", "trireme.tools.cli", "trireme.devices.cpu.device"])
def test_ctrl_c_in_imports_is_one_line_and_130(module, model, tmp_path):
    done = run("run", model, env=ctrl_c_at(module, tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


def test_ctrl_c_after_the_command_is_one_line_and_130(model, tmp_path):
    code = (
        "import atexit, os, signal, sys; sys.argv[0] = 'trireme'\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "from trireme.tools.cli import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "info", model], capture_output=True)
    assert (done.returncode, done.stderr) == (130, b"interrupted\n")


def test_devices_opens_one_device_at_a_time():
    done = run("devices")
    assert done.returncode == 0 and b"cpu" in done.stdout
    assert b"sessions of this process" not in done.stderr


def test_the_package_leaves_signals_to_its_user():
    code = (
        "import signal, trireme\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_ignored_ctrl_c_stays_ignored(model, tmp_path):
    """As `nohup` and shells' background jobs have it."""
    environment = ctrl_c_at("trireme.runtime.session.session", tmp_path)
    ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
    assert run("info", model, env=environment, preexec_fn=ignore).returncode == 0


STREAMS = {
    "all are closed": ("{run} <&- >&- 2>&-", 0),
    "nobody reads stdout": ("{{ {run}; echo $? >&2; }} | true", 0),
    "stderr is full": ("{run} 2>/dev/full", 0),
    "stdout is full": ("{run} >/dev/full", 4),
    "an error and no stderr": ("{run} --graf 2>&-", 2),
}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has /dev/full")
@pytest.mark.parametrize("name", STREAMS)
def test_streams_that_are_closed_or_full(name, model):
    line, code = STREAMS[name]
    command = line.format(run=f"{' '.join(TRIREME)} info {model}")
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True)
    text = done.stderr.decode()
    assert done.returncode == code, text
    assert "Traceback" not in text and "Exception ignored" not in text
    if name == "stdout is full":
        assert text == "No space left on device\n"


def test_a_name_that_does_not_decode(model, tmp_path, capsys):
    name = os.fsencode(tmp_path) + b"/caf\xe9.trm"
    shutil.copy(os.fsencode(model), name)
    done = run("convert", name, "-o", name + b".trm")
    assert done.returncode == 0 and b"caf\\udce9.trm.trm: 2 nodes" in done.stdout, done.stderr
    assert os.path.exists(name + b".trm")
    for command in ("info", "run"):
        code, _, err = call(capsys, command, os.fsdecode(name))
        assert code == 0, err
    code, _, err = call(capsys, "info", os.fsdecode(name) + ".onnx")
    assert code == 4 and "No such file" in err


def test_the_version_is_one(capsys):
    with pytest.raises(SystemExit):
        call(capsys, "--version")
    assert capsys.readouterr().out == f"trireme {trireme.__version__}\n"
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    assert settings["tool"]["setuptools"]["dynamic"]["version"]["attr"].endswith("__version__")


def test_labels_of_another_number_than_the_classes(model, tmp_path, capsys):
    labels = tmp_path / "labels.txt"
    labels.write_text("cat\ndog\n")
    code, out, err = call(capsys, "run", model, "--labels", str(labels))
    assert code == 2 and not out
    assert err == "RunError: there are 2 labels for 4 classes\n"


def test_a_fault_of_our_own_is_70(model, capsys, monkeypatch):
    def broken(options):
        raise KeyError("oops")

    monkeypatch.setattr(commands, "load", broken)
    code, _, err = call(capsys, "info", model)
    assert code == 70 and "This is a fault of trireme: KeyError" in err
