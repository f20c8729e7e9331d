"""Architectures with random weights whose outputs depend on their inputs, as ONNX, and real inputs.

Importing this module needs torch, transformers and scikit-learn. Convolutional nets have weights
of Kaiming's size and batch norms whose statistics are those of photographs, so that every layer
passes its input on. BERT-mini and ViT-tiny keep the weights of transformers' own initialisation;
the other transformers have weights of the size of their fan-in.
"""

import io
import pathlib

import numpy as np
import torch
import transformers as hf
from sklearn.datasets import load_sample_images
from torch import nn

SEED = 20261125
VOCAB = 1000
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


class Output(nn.Module):
    """Make a transformers model return one tensor; a model of text gets a mask that lets all in."""

    def __init__(self, model, key):
        super().__init__()
        self.model, self.key = model, key

    def forward(self, x):
        mask = {} if x.is_floating_point() else {"attention_mask": torch.ones_like(x)}
        return getattr(self.model(x, return_dict=True, **mask), self.key)


def photographs(count, size, seed):
    """Crops of two photographs, some flipped, as ImageNet's models take them: [N,1,3,H,W]."""
    rng = np.random.default_rng(seed)
    photos = load_sample_images().images
    made = []
    for _ in range(count):
        photo = photos[rng.integers(len(photos))]
        side = int(rng.integers(min(size, 200), 420))
        top, left = (int(rng.integers(0, n - side + 1)) for n in photo.shape[:2])
        rows = (np.arange(size) * side // size) + top
        columns = (np.arange(size) * side // size) + left
        crop = photo[np.ix_(rows, columns)][:, :: rng.choice([-1, 1])]
        crop = (crop.astype(np.float32) / 255 - MEAN) / DEVIATION
        made.append(crop.transpose(2, 0, 1)[None])
    return np.stack(made)


def tokens(count, length, seed):
    """Token ids that are as unequally frequent as words: [N,1,length]."""
    rng = np.random.default_rng(seed)
    return np.minimum(rng.zipf(1.2, (count, 1, length)), VOCAB - 1).astype(np.int64)


def waves(count, length, seed):
    """Sums of a few tones that swell and fade, with noise: [N,1,length]."""
    rng = np.random.default_rng(seed)
    t = np.arange(length, dtype=np.float32) / 16000
    made = np.zeros((count, 1, length), np.float32)
    for row in made[:, 0]:
        for _ in range(4):
            tone = np.sin(2 * np.pi * rng.uniform(100, 2000) * t + rng.uniform(0, 6))
            row += tone * np.sin(np.pi * t / t[-1] * rng.integers(1, 4))
        row += rng.standard_normal(length) * 0.05
        row /= row.std()
    return made


def of_the_fan_in(model):
    """Give products weights of the size of their fan-in."""
    for part in model.modules():
        if isinstance(part, (nn.Linear, nn.Conv1d, nn.Conv2d, hf.pytorch_utils.Conv1D)):
            axis = 1 if isinstance(part, hf.pytorch_utils.Conv1D) else 0
            fan = part.weight.numel() / part.weight.shape[axis]
            gain = 2 if isinstance(part, nn.Conv2d) else 1
            nn.init.normal_(part.weight, std=(gain / fan) ** 0.5)
    return model


def of_photographs(model, size):
    """Give convolutions Kaiming's weights and batch norms the statistics of photographs."""
    of_the_fan_in(model)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.3)
            part.momentum = None
    with torch.no_grad():
        model.train()(torch.from_numpy(photographs(16, size, SEED)[:, 0]))
    return model.eval()


TEXT = {"vocab_size": VOCAB, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
LLAMA = {**TEXT, "intermediate_size": 256, "num_key_value_heads": 2, "use_cache": False}


def mobilenet_v2():
    net = hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(num_labels=1000))
    return of_photographs(net, 224), "logits", photographs, 224


def resnet(**options):
    def make():
        net = hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000, **options))
        return of_photographs(net, 224), "logits", photographs, 224

    return make


def bert_mini():
    config = hf.BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        attn_implementation="eager",
    )
    return hf.BertModel(config), "last_hidden_state", tokens, 128


def vit_tiny():
    config = hf.ViTConfig(
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        num_labels=1000,
        attn_implementation="eager",
    )
    return hf.ViTForImageClassification(config), "logits", photographs, 224


def gpt2():
    config = hf.GPT2Config(
        vocab_size=VOCAB, n_embd=128, n_layer=3, n_head=4, n_positions=64, use_cache=False
    )
    return of_the_fan_in(hf.GPT2LMHeadModel(config)), "logits", tokens, 64


def llama():
    return of_the_fan_in(hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA))), "logits", tokens, 64


def distilbert():
    config = hf.DistilBertConfig(vocab_size=VOCAB, dim=128, n_layers=3, n_heads=4, hidden_dim=256)
    return of_the_fan_in(hf.DistilBertForMaskedLM(config)), "logits", tokens, 64


def t5():
    config = hf.T5Config(
        vocab_size=VOCAB, d_model=128, d_kv=32, d_ff=256, num_layers=3, num_heads=4
    )
    return of_the_fan_in(hf.T5EncoderModel(config)), "last_hidden_state", tokens, 64


def swin():
    config = hf.SwinConfig(
        image_size=64, embed_dim=48, depths=[2, 2], num_heads=[3, 6], window_size=4, num_labels=100
    )
    return of_the_fan_in(hf.SwinForImageClassification(config)), "logits", photographs, 64


def segformer():
    config = hf.SegformerConfig(
        hidden_sizes=[32, 48, 64, 96],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=64,
        num_labels=20,
    )
    net = of_the_fan_in(hf.SegformerForSemanticSegmentation(config))
    return net, "logits", photographs, 96


def wav2vec2():
    config = hf.Wav2Vec2Config(
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        conv_dim=(64, 64, 64),
        conv_kernel=(10, 3, 3),
        conv_stride=(5, 4, 4),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        vocab_size=32,
    )
    return of_the_fan_in(hf.Wav2Vec2ForCTC(config)), "logits", waves, 4000


MODELS = {
    "resnet18": resnet(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic"),
    "resnet50": resnet(),
    "mobilenet_v2": mobilenet_v2,
    "bert_mini": bert_mini,
    "vit_tiny": vit_tiny,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "distilbert": distilbert,
    "swin": swin,
    "segformer": segformer,
    "wav2vec2": wav2vec2,
}
"""Makers of (module, name of its output, function of samples, size of a sample)."""

CLASSES = {"segformer": 1}
"""The axis of the scores of classes in the logits of one sample, where it is not the last."""


def write(name, folder):
    """Write a model as ONNX; return its path, (samples for ranges, others), axis of classes."""
    torch.manual_seed(SEED)
    model, key, samples, size = MODELS[name]()
    example = torch.from_numpy(samples(1, size, SEED)[0])
    path = pathlib.Path(folder) / f"{name}.onnx"
    file = io.BytesIO()
    torch.onnx.export(
        Output(model.eval(), key),
        (example,),
        file,
        input_names=["input"],
        output_names=["output"],
        opset_version=17,
        dynamo=False,
    )
    path.write_bytes(file.getvalue())
    classes = CLASSES.get(name, -1) if key == "logits" else None
    return path, (samples(32, size, SEED + 1), samples(16, size, SEED + 2)), classes
