"""Time greedy decoding beside ONNX Runtime and OpenVINO, and compare every token.

    python -m lab.speed.export_decoders models
    python -m lab.speed.decode models/llama_like.onnx --threads 1

Each engine decodes the same prompt. Engines take turns, some steps at a time. A row has the tokens
a second of the median step around a past, and of all steps. "ours" is a session that is fed what it
returned; "ours, states" holds the past itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np
import onnxruntime

from lab.speed.peers import onnx_session, openvino_model
from trireme.runtime.session.session import Session

Array = np.ndarray
Step = Callable[[Mapping[str, Array]], Array]
"""(ids, mask, pos of the new tokens) -> logits; the past is the engine's own."""


class Decoder:
    """The names and sizes of an exported decoder (export_decoders.py)."""

    def __init__(self, path: str) -> None:
        self.path = path
        plain = onnx_session(path)
        past = [value for value in plain.get_inputs() if value.name.startswith("past.")]
        self.past = [value.name for value in past]
        self.present = [name.replace("past.", "present.", 1) for name in self.past]
        _, self.heads, _, self.size = past[0].shape

    def empty(self) -> Array:
        """The past before the first token."""
        return np.zeros((1, self.heads, 0, self.size), np.float32)


def ours(model: Decoder, threads: int, steps: int, tied: bool) -> Step:
    """A session of ours."""
    most = -(-steps // 64) * 64 + 64
    shapes: dict[str, tuple[object, ...]] = {
        "ids": (1, "seq<=64"),
        "mask": (1, f"total<={most}"),
        "pos": (1, "seq<=64"),
    }
    shapes |= dict.fromkeys(model.past, (1, model.heads, f"past<={most - 64}", model.size))
    states = {"past.*": "present.*"} if tied else None
    session = Session(model.path, shapes=shapes, threads=threads, devices=["cpu"], states=states)
    held = {} if tied else dict.fromkeys(model.past, model.empty())

    def step(feeds: Mapping[str, Array]) -> Array:
        made = session.run({**feeds, **held})
        if not tied:
            held.update({past: made[name] for past, name in pairs})
        return made["logits"]

    pairs = list(zip(model.past, model.present, strict=True))
    return step


def ort_run(model: Decoder, threads: int) -> Step:
    """ONNX Runtime's run, fed the arrays that it returned."""
    session = onnx_session(model.path, threads)
    held = dict.fromkeys(model.past, model.empty())
    names = ["logits", *model.present]

    def step(feeds: Mapping[str, Array]) -> Array:
        logits, *present = session.run(names, {**feeds, **held})
        held.update(zip(model.past, present, strict=True))
        return logits

    return step


def ort_bound(model: Decoder, threads: int) -> Step:
    """ONNX Runtime's IO binding: what it made is bound as it lies."""
    session = onnx_session(model.path, threads)
    binding = session.io_binding()
    empty = model.empty()
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(empty) for name in model.past}

    def step(feeds: Mapping[str, Array]) -> Array:
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name, value in held.items():
            binding.bind_ortvalue_input(name, value)
        for name in ("logits", *model.present):
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        logits, *present = binding.get_outputs()
        held.update(zip(model.past, present, strict=True))
        return logits.numpy()

    return step


def openvino_stateful(model: Decoder, threads: int) -> Step:
    """OpenVINO, whose states are the past; they are set to an empty one first."""
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation

    read = openvino.Core().read_model(model.path)
    apply_make_stateful_transformation(read, dict(zip(model.past, model.present, strict=True)))
    request = openvino_model(read, threads).create_infer_request()
    for state in request.query_state():
        state.state = openvino.Tensor(model.empty())

    def step(feeds: Mapping[str, Array]) -> Array:
        request.infer(dict(feeds), share_inputs=True)
        return request.get_output_tensor(0).data

    return step


ENGINES: dict[str, Callable[[Decoder, int, int], Step]] = {
    "ours": lambda model, threads, steps: ours(model, threads, steps, False),
    "ours, states": lambda model, threads, steps: ours(model, threads, steps, True),
    "ort run": lambda model, threads, _: ort_run(model, threads),
    "ort IO binding": lambda model, threads, _: ort_bound(model, threads),
    "openvino": lambda model, threads, _: openvino_stateful(model, threads),
}


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Decoding:
    """One engine's decoding so far: its tokens, and the seconds of each step."""

    def __init__(self, step: Step, prompt: Array, clock: Callable[[], float]) -> None:
        self._step, self._past, self._clock = step, 0, clock
        self.tokens: list[int] = []
        self.seconds: list[float] = []
        self._feed(prompt)
        self.seconds.clear()

    def _feed(self, ids: Array) -> None:
        start, length = self._clock(), ids.shape[1]
        feeds = {
            "ids": ids,
            "mask": np.ones((1, self._past + length), np.int64),
            "pos": np.arange(self._past, self._past + length)[None],
        }
        logits = self._step(feeds)
        self.tokens.append(int(logits[0, -1].argmax()))
        self._past += length
        self.seconds.append(self._clock() - start)

    def go(self, steps: int) -> None:
        """Decode some tokens."""
        for _ in range(steps):
            self._feed(np.array([[self.tokens[-1]]]))


def rate(seconds: list[float], quantile: float) -> float:
    """Return the tokens a second of the step at a quantile of the times."""
    return 1 / sorted(seconds)[int(len(seconds) * quantile)]


def main() -> None:
    """Decode, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=4, help="tokens before the first step")
    parser.add_argument("--turn", type=int, default=16, help="steps before the next engine's turn")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: of the process, for a busy machine"
    )
    parser.add_argument(
        "--quantile", type=float, default=0.5, help="the step that counts; 0.1 on a busy machine"
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often all is decoded")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = Decoder(options.model)
    prompt = np.random.default_rng(options.seed).integers(0, 1000, (1, options.prompt))
    print(f"{options.model}, {options.threads} threads, seed {options.seed}")
    took: dict[str, list[list[float]]] = {}
    for _ in range(options.rounds):
        running: dict[str, Decoding] = {}
        for name in options.engines:
            try:
                step = ENGINES[name](model, options.threads, options.steps + options.prompt)
            except ImportError:
                print(f"{name}: not installed")
                continue
            running[name] = Decoding(step, prompt, CLOCKS[options.clock])
        for _ in range(options.steps // options.turn):
            for one in running.values():
                one.go(options.turn)
        tokens = {name: one.tokens for name, one in running.items()}
        wanted = tokens.get("ort run", next(iter(tokens.values())))
        for name, found in tokens.items():
            same = sum(a == b for a, b in zip(found, wanted, strict=True))
            if same != len(wanted):
                print(f"{name}: {len(wanted) - same} of {len(wanted)} tokens are other ones")
            took.setdefault(name, []).append(running[name].seconds)
    near = {"past 16": (8, 32), "past 480": (464, 496), "all": (0, options.steps)}
    print(f"{'tokens a second':16}" + "".join(f"{title:>12}" for title in near))
    for name, runs in took.items():
        rates = []
        for first, last in near.values():
            low, high = (max(at - options.prompt, 0) for at in (first, last))
            part = [s for seconds in runs for s in seconds[low:high]]
            rates.append(f"{rate(part, options.quantile):12.0f}" if part else f"{'-':>12}")
        print(f"{name:16}" + "".join(rates))


if __name__ == "__main__":
    main()
