"""serve.toml: typed data, and errors that name the table and the key."""

import tomllib

import pytest
from doc_blocks import blocks
from zoo import CHECKOUT

from trireme.serving.config import BatchSettings, ModelSettings, PipelineSettings, ServeConfig
from trireme.serving.config_file import config_of, read_config
from trireme.serving.versions import VersionPolicy
from trireme.support.errors import ModelFileError, RunError

WHOLE = """
[server]
repository = "models"
http = 0
grpc = 8001
poll_s = 0.5

[limits]
max_queue = 16

[defaults]
threads = 2
devices = ["npu", "cpu"]

[models.digits]
path = "digits.onnx"
threads = 1
versions = {specific = [1, 3]}
labels = {digit = ["zero", "one"]}

[models.digits.batching]
max_batch_size = 8
preferred_batch_size = [4, 8]

[pipelines.reader]
stages = ["prepare:decode", "digits"]
queue = 2
inputs = {image = "UINT8[-1]"}
"""


def test_a_whole_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text(WHOLE)
    config = read_config(file)
    assert config.server.repository == str(tmp_path / "models")
    assert (config.server.http, config.server.grpc, config.server.poll_s) == (0, 8001, 0.5)
    assert config.server.host == "127.0.0.1"
    assert config.limits.max_queue == 16
    digits = config.of_model("digits")
    assert digits == ModelSettings(
        path=str(tmp_path / "digits.onnx"),
        threads=1,
        devices=["npu", "cpu"],
        versions=VersionPolicy(specific=[1, 3]),
        labels={"digit": ["zero", "one"]},
        batching=BatchSettings(max_batch_size=8, preferred_batch_size=[4, 8]),
    )
    assert config.of_model("other") == ModelSettings(threads=2, devices=["npu", "cpu"])
    assert config.pipelines == {
        "reader": PipelineSettings(
            stages=["prepare:decode", "digits"], queue=2, inputs={"image": "UINT8[-1]"}
        )
    }


def test_the_example_of_the_docs():
    page = (CHECKOUT / "docs/reference/serve-config.md").read_text()
    (example,) = [text for kind, _, text in blocks(page) if kind == "toml"]
    config = config_of(tomllib.loads(example))
    assert config.of_model("digits").threads == 2
    assert config.of_model("digits").batching.max_batch_size == 16


def test_nothing_is_the_defaults(tmp_path):
    (tmp_path / "serve.toml").write_text("")
    assert read_config(tmp_path / "serve.toml") == ServeConfig()


@pytest.mark.parametrize(
    "table, words",
    [
        ({"servr": {}}, "config: 'servr' is no key"),
        ({"server": 3}, "config: server is 3, expected a table"),
        ({"server": {"htp": 1}}, r"config \[server\]: 'htp' is no key[^$]*did you mean 'http'"),
        ({"server": {"http": "80"}}, r"config \[server\]: http is '80', expected a whole number"),
        ({"limits": {"max_queue": 1.5}}, r"config \[limits\]: max_queue is 1.5"),
        ({"defaults": {"threads": True}}, r"config \[defaults\]: threads is True"),
        ({"models": {"a": {"devices": "cpu"}}}, r"config \[models.a\]: devices is 'cpu'"),
        ({"models": {"a": {"batching": {"max_queue": "x"}}}}, r"\[models.a.batching\]: max_queue"),
        ({"models": {"a": {"versions": {"latest": 0}}}}, r"\[models.a.versions\]: "),
        ({"models": {"a": 1}}, r"config: models.a is 1, expected a table"),
        ({"models": 1}, r"config: models is 1"),
        ({"models": {"a/b": {}}}, "'a/b' is no name of a model"),
        ({"pipelines": {"..": {"stages": ["a"]}}}, "'..' is no name of a model"),
        ({"pipelines": {"p": {"stages": ["a"], "workers": [1, 2]}}}, r"\[pipelines.p\]: workers"),
        ({"pipelines": {"p": {"stages": ["a"], "queue": 0}}}, r"\[pipelines.p\]: queue"),
        ({"pipelines": {"p": {"stages": [1]}}}, r"\[pipelines.p\]: stages is \[1\]"),
    ],
)
def test_errors_name_the_key(table, words):
    with pytest.raises(RunError, match=words):
        config_of(table)


def test_files_that_are_no_toml(tmp_path):
    file = tmp_path / "serve.toml"
    for data in (b"a = ", b"\xff\xfe"):
        file.write_bytes(data)
        with pytest.raises(ModelFileError, match="serve.toml is no TOML"):
            read_config(file)
    with pytest.raises(ModelFileError, match="none.toml cannot be read"):
        read_config(tmp_path / "none.toml")
