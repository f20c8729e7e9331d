"""Print how fast models of transformers are through torch.export, through ONNX and in torch.

Run as `python -m lab.speed.torch_models`; it needs torch, transformers and, for torch.compile, a
C++ compiler. Each ratio is the median over rounds in which the four take turns, on one thread.
Biases are random: ONNX's route drops the zeros that random weights begin with.
"""

import io
import statistics
import time
import warnings

import torch
import transformers as hf
from torch.utils import _pytree

import trireme

SEED, ROUNDS, WARMUP = 20261123, 40, 3
VOCAB, LENGTH, SIZE = 2000, 128, 224
EAGER = {"attn_implementation": "eager"}


def text():
    """Return token ids and a mask."""
    ids = torch.randint(0, VOCAB, (1, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def image(size=SIZE):
    """Return an image."""
    return {"pixel_values": torch.randn(1, 3, size, size)}


def bert():
    config = hf.BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        vocab_size=VOCAB,
        **EAGER,
    )
    return hf.BertModel(config), text()


def vit():
    config = hf.ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        **EAGER,
    )
    return hf.ViTModel(config), image()


def resnet():
    config = hf.ResNetConfig(
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"
    )
    return hf.ResNetModel(config), image()


def convnext():
    config = hf.ConvNextConfig(hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 4, 2])
    return hf.ConvNextModel(config), image()


def swin():
    config = hf.SwinConfig(embed_dim=48, depths=[2, 2, 2, 2], num_heads=[3, 6, 12, 24])
    return hf.SwinModel(config), image()


def segformer():
    return hf.SegformerForSemanticSegmentation(hf.SegformerConfig()), image(128)


class Flat(torch.nn.Module):
    """A model that takes its inputs by position and returns tensors, for the ONNX exporter."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs):
        made = self.model(**dict(zip(self.names, inputs, strict=True)))
        return tuple(one for one in _pytree.tree_leaves(made) if isinstance(one, torch.Tensor))


def onnx_bytes(model, inputs):
    """Return the model as torch's ONNX exporter writes it."""
    file = io.BytesIO()
    with torch.no_grad():
        torch.onnx.export(
            Flat(model, list(inputs)),
            tuple(inputs.values()),
            file,
            dynamo=False,
            opset_version=17,
            input_names=list(inputs),
        )
    return file.getvalue()


def take_turns(calls):
    """Return the seconds of each call, round by round."""
    times = [[] for _ in calls]
    for turn in range(WARMUP + ROUNDS):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if turn >= WARMUP:
                taken.append(time.perf_counter() - start)
    return times


def row(make):
    """Return a model's line of the table."""
    torch.manual_seed(SEED)
    model, inputs = make()
    for name, one in model.eval().named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(one, std=0.1)
    graph, other = trireme.convert(model, inputs), trireme.convert(onnx_bytes(model, inputs))
    with trireme.Session(graph, threads=1) as ours, trireme.Session(other, threads=1) as onnx:
        fed = {name: one.numpy() for name, one in inputs.items()}

        def eager():
            with torch.no_grad():
                model(**inputs)

        inductor = torch.compile(model)

        def compiled():
            with torch.no_grad():
                inductor(**inputs)

        calls = [lambda: ours.run(fed), lambda: onnx.run(fed), eager, compiled]
        seconds = take_turns(calls)
    ratios = [
        statistics.median(theirs / own for own, theirs in zip(seconds[0], other, strict=True))
        for other in seconds[1:]
    ]
    best = " | ".join(f"{min(one) * 1e3:.2f}" for one in seconds)
    return f"| {make.__name__} | {best} | {' | '.join(f'{one:.2f}' for one in ratios)} |"


def main():
    torch.set_num_threads(1)
    names = ("torch.export", "ONNX", "torch eager", "torch.compile")
    ratios = " | ".join(f"{name}: ratio" for name in names[1:])
    print(f"| model | {' | '.join(f'{name}, ms' for name in names)} | {ratios} |")
    print("|---" * 8 + "|")
    for make in (bert, vit, resnet, convnext, swin, segformer):
        print(row(make), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
