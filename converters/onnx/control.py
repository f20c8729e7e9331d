"""If, Loop and Scan: bodies become graphs, outer values they read become extra inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.converters.onnx.scope import Use

ConvertBody = Callable[..., list[int]]
CONTROL: dict[str, Callable[[Use, ConvertBody], Sequence[int | None]]] = {}
