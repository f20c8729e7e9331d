"""A benchmark's side of a worker process: start it, ask it, time it out, watch what it burns."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trireme.support import timing
from trireme.support.errors import TriremeError

SCRIPT = Path(__file__).with_name("worker.py")
QUIET_S = 0.004  # an engine at rest burns next to nothing for this long ...
QUIET_SHARE = 0.05  # ... this share of it at most
SETTLE_S = 1.0  # and is waited for so long


class WorkerFailed(TriremeError):
    """An engine's process reported an error, died or gave no answer in time."""


class WorkerProcess:
    """One engine in a process of its own, in a session of its own so that Ctrl-C is ours alone.

    environment: what is added to this process's, for the engine's own limits
    started: when it was started, by `time.monotonic`, which all processes share
    """

    def __init__(
        self, name: str, task: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        self.started = time.monotonic()
        # -P: no module of the script's own folder hides one of the engine's
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._buffer = b""
        self._send({**task, "timing": timing.__file__})

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def ask(self, do: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        """Return the answer to a command.

        Errors: WorkerFailed, naming the engine and the last line it wrote to standard error
        """
        self._send({"do": do, **arguments})
        answer: dict[str, Any] = json.loads(self._line(do, limit_s))
        if "error" in answer:
            self.kill()
            raise WorkerFailed(answer["error"])
        return answer

    def cpu_s(self) -> float:
        """Return the CPU seconds that all its threads have used (Linux)."""
        total = 0
        try:
            for task in os.scandir(f"/proc/{self.pid}/task"):
                total += int(Path(task.path, "schedstat").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return total / 1e9
        return total / 1e9

    def choose_executor(self) -> bool:
        """Wait until its idle threads have stopped spinning; False if they never do."""
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            before, start = self.cpu_s(), time.monotonic()
            time.sleep(QUIET_S)
            if self.cpu_s() - before <= QUIET_SHARE * (time.monotonic() - start):
                return True
        return False

    def close(self) -> None:
        """End it: by the end of its input, by force if it does not listen."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self._input.close()
            self._process.wait(timeout=2)
        self.kill()

    def kill(self) -> None:
        """End it at once, and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._input, self._output, self._errors):
            with suppress(OSError):
                stream.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._input.write(json.dumps(message).encode() + b"\n")
            self._input.flush()
        except (BrokenPipeError, ValueError):
            raise self._died("start") from None

    def _line(self, do: str, limit_s: float) -> bytes:
        """Return the next line it writes; the wait is a sleep."""
        descriptor, end = self._output.fileno(), time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self.kill()
                raise WorkerFailed(f"hung: no answer to '{do}' within {limit_s:g} s")
            chunk = os.read(descriptor, 1 << 20)
            if not chunk:
                raise self._died(do)
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self, do: str) -> WorkerFailed:
        if self._errors.closed:
            return WorkerFailed(f"its process had ended before '{do}'")
        code = self._process.wait()
        self._errors.seek(0)
        written = self._errors.read().decode(errors="replace").strip().splitlines()
        self.kill()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        last = f": {written[-1]}" if written else ""
        return WorkerFailed(f"its process died at '{do}' ({how}){last}")
