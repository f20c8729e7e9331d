"""The file serve.toml as typed data: the fields of these classes are the keys of its tables.

The command line and `trireme.serving` fill the same classes, so a default stands in one place.
docs/reference/serve-config.md is written from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trireme.serving.admission import ServingLimits
from trireme.serving.layout import is_model_name
from trireme.serving.versions import VersionPolicy
from trireme.support.errors import RunError


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where the server listens, and what it serves.

    repository: folder of models, NAME/VERSION/model.onnx or NAME.onnx
    poll_s: seconds between looks at the repository; 0 never looks again
    host: the address to listen at; only programs of this machine reach the loopback
    http: port of HTTP; 0 takes any free port
    grpc: port of gRPC; 0 takes any free port; without one there is no gRPC
    allow_admin: clients may load and unload models
    token_file: file with a token; requests then need it as "Authorization: Bearer TOKEN"
    certificate: file in PEM format; with `key` the server speaks TLS
    key: file in PEM format
    """

    repository: str = ""
    poll_s: float = 5.0
    host: str = "127.0.0.1"
    http: int = 8000
    grpc: int | None = None
    allow_admin: bool = False
    token_file: str = ""
    certificate: str = ""
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """How single requests are gathered into batches; the first axis of every input is the batch.

    max_batch_size: most rows of a batch; 0 gathers nothing
    preferred_batch_size: sizes at which a batch starts before its delay is over
    max_queue_delay_us: longest wait of a request for others, in microseconds
    max_queue: most requests that wait
    timeout_us: longest wait of a request for its batch to start, in microseconds; 0 has no end
    """

    max_batch_size: int = 0
    preferred_batch_size: Sequence[int] = ()
    max_queue_delay_us: int = 0
    max_queue: int = 256
    timeout_us: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How a model is opened. The table `defaults` holds for every model, `models.NAME` for one.

    path: the model's file, or its folder of versions, for a model outside the repository
    devices: names of the devices; cpu when not given
    threads: worker threads of the cpu device; all its cores when not given
    contexts: runs of the model that may be under way at once; as many as suit when not given
    fallback: serve without a device that cannot be opened or cannot compile the model; answer
        requests on the other devices where one fails
    placement: file of a placement to hold
    shapes: shapes of inputs that the model leaves open: {ids = [1, "seq<=512"]}
    buckets: sizes that open dimensions are padded to: {seq = [64, 128]}
    labels: texts of the classes of an output: {digit = ["zero", "one"]}
    mmap: map the file; it must then be replaced by a rename, never overwritten
    warm_up: run the model once on made-up inputs before it serves
    versions: which versions serve: {latest = 2} or {specific = [1, 3]}
    batching: how requests are gathered into batches
    """

    path: str = ""
    devices: Sequence[str] | None = None
    threads: int | None = None
    contexts: int | None = None
    fallback: bool = False
    placement: str | None = None
    shapes: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    buckets: Mapping[str, Sequence[int]] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    mmap: bool = False
    warm_up: bool = True
    versions: VersionPolicy = field(default_factory=VersionPolicy)
    batching: BatchSettings = field(default_factory=BatchSettings)


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """Stages that requests go through one after another, each working on another request.

    stages: names of models, or Python functions as "module:function"
    queue: requests that may wait before each stage
    workers: calls of each stage that may be under way at once; 1 when not given
    inputs: what clients send, where the first stage is a function: {image = "UINT8[-1]"}
    outputs: what clients get, where the last stage is a function
    """

    stages: Sequence[str] = ()
    queue: int = 4
    workers: Sequence[int] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.workers and len(self.workers) != len(self.stages):
            raise RunError(
                f"workers has {len(self.workers)} numbers, expected one for each of "
                f"{len(self.stages)} stages"
            )
        if self.queue < 1 or any(one < 1 for one in self.workers):
            raise RunError("queue and workers are whole numbers from 1")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The whole file, a field a table.

    server: where the server listens, and what it serves
    limits: what the server takes on
    defaults: how models are opened that say nothing else
    models: how each model is opened, by name
    pipelines: chained models and functions, by the name that clients ask for
    """

    server: ServerSettings = field(default_factory=ServerSettings)
    limits: ServingLimits = field(default_factory=ServingLimits)
    defaults: ModelSettings = field(default_factory=ModelSettings)
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    pipelines: Mapping[str, PipelineSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.models, *self.pipelines):
            if not is_model_name(name):
                raise RunError(f"{name!r:.100} is no name of a model")

    def of_model(self, name: str) -> ModelSettings:
        """Return how a model is opened."""
        return self.models.get(name, self.defaults)
