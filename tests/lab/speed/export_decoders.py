"""Export a small Llama-like and a small GPT-2-like decoder with random weights to ONNX.

    python -m lab.speed.export_decoders models

Each model takes (ids, mask, pos, past...) and returns (logits, present...): past and present are
the keys and values of each layer, [batch, heads, length, size]. All sizes but those are open.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

VOCABULARY, HIDDEN, HEADS, MOST = 8000, 256, 8, 1024


class Decoder(torch.nn.Module):
    """One step of a decoder: the past's keys and values come in, the present's go out."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, pos: torch.Tensor, past: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Return the logits, and the keys and values of each layer."""
        cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(zip(past[::2], past[1::2], strict=True)):
            cache.update(keys, values, layer)
        found = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=pos,
            past_key_values=cache,
            use_cache=True,
        )
        present = [part for one in found.past_key_values.layers for part in (one.keys, one.values)]
        return (found.logits, *present)


def llama(layers: int) -> tuple[torch.nn.Module, int]:
    """Return a model with rotary embeddings and heads in groups, and its heads of keys."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=688,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=MOST,
    )
    return transformers.LlamaForCausalLM(config), HEADS // 2


def gpt2(layers: int) -> tuple[torch.nn.Module, int]:
    """Return a model with learned positions, and its heads of keys."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=HIDDEN,
        n_layer=layers,
        n_head=HEADS,
        n_positions=MOST,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config), HEADS


MODELS: dict[str, Callable[[int], tuple[torch.nn.Module, int]]] = {
    "llama_like": llama,
    "gpt2_like": gpt2,
}


def export(name: str, path: pathlib.Path, layers: int = 6) -> None:
    """Write a model; sample sizes above 1, because torch takes a 1 for a fixed size."""
    torch.manual_seed(0)
    model, heads = MODELS[name](layers)
    batch, before, length = 2, 5, 2
    ids = torch.randint(0, VOCABULARY, (batch, length))
    mask = torch.ones(batch, before + length, dtype=torch.int64)
    pos = torch.arange(before, before + length)[None].repeat(batch, 1)
    past = [torch.randn(batch, heads, before, HIDDEN // HEADS) for _ in range(2 * layers)]
    names = [f"{kind}.{layer}" for layer in range(layers) for kind in ("key", "value")]
    open_size = torch.export.Dim.DYNAMIC
    flat, grown = {0: open_size, 1: open_size}, {0: open_size, 2: open_size}
    torch.onnx.export(
        Decoder(model).eval(),
        (ids, mask, pos, past),
        str(path),
        dynamo=True,
        opset_version=18,
        input_names=["ids", "mask", "pos", *(f"past.{one}" for one in names)],
        output_names=["logits", *(f"present.{one}" for one in names)],
        dynamic_shapes=(flat, flat, flat, [grown] * (2 * layers)),
        external_data=False,
    )


if __name__ == "__main__":
    for each in MODELS:
        export(each, pathlib.Path(sys.argv[1]) / f"{each}.onnx")
