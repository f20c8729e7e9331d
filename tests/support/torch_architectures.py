"""Architectures of transformers with random weights in small configurations, and their inputs.

Importing this module needs torch and transformers. Each entry makes (module, inputs by name).
"""

import torch
import transformers as hf
from torch import nn

SEED = 20261123
VOCAB = 99


def ids(batch=2, length=12):
    return torch.randint(3, VOCAB, (batch, length))


def mask(batch=2, length=12):
    """Return a mask whose last row is shorter."""
    made = torch.ones(batch, length, dtype=torch.int64)
    made[-1, length - 4 :] = 0
    return made


def text(config, model, **options):
    """Return a maker of a text model with a mask of what counts."""

    def make():
        built = getattr(hf, model)(getattr(hf, config)(**options))
        return built, {"input_ids": ids(), "attention_mask": mask()}

    return make


def image(config, model, size=32, **options):
    """Return a maker of a model of images."""

    def make():
        built = getattr(hf, model)(getattr(hf, config)(**options))
        return built, {"pixel_values": torch.randn(2, 3, size, size)}

    return make


def sound(config, model, length=2000, **options):
    """Return a maker of a model of waves."""

    def make():
        built = getattr(hf, model)(getattr(hf, config)(**options))
        return built, {"input_values": torch.randn(1, length)}

    return make


class WithCache(nn.Module):
    """A decoder of one step: ids and the past's keys and values in, logits and the new ones out."""

    def __init__(self, model, layers):
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, input_ids, attention_mask, past):
        cache = hf.DynamicCache()
        for layer in range(self.layers):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        made = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=True,
        )
        after = [
            part for layer in made.past_key_values.layers for part in (layer.keys, layer.values)
        ]
        return {"logits": made.logits, "present": after}


def decoder(config, model, heads, width, past=6, **options):
    """Return a maker of a decoder with `past` positions in its cache."""

    def make():
        settings = getattr(hf, config)(**options)
        layers = settings.num_hidden_layers
        cache = [torch.randn(2, heads, past, width) for _ in range(2 * layers)]
        module = WithCache(getattr(hf, model)(settings), layers)
        return module, {
            "input_ids": ids(2, 1),
            "attention_mask": mask(2, past + 1),
            "past": cache,
        }

    return make


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = {**SMALL, "intermediate_size": 48, "vocab_size": VOCAB, "max_position_embeddings": 40}
LLAMA = {**BERT, "num_key_value_heads": 2, "pad_token_id": 0}
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}
VIT = {**SMALL, "intermediate_size": 48, "image_size": 32, "patch_size": 8}
SPEECH = {
    **SMALL,
    "intermediate_size": 48,
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 20,
}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}


T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}


def t5():
    config = hf.T5Config(**T5, decoder_start_token_id=0, use_cache=False)
    inputs = {"input_ids": ids(), "attention_mask": mask(), "decoder_input_ids": ids(2, 7)}
    return hf.T5ForConditionalGeneration(config), inputs


def whisper():
    config = hf.WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=20,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    )
    inputs = {"input_features": torch.randn(1, 16, 40), "decoder_input_ids": ids(1, 7)}
    return hf.WhisperForConditionalGeneration(config), inputs


def clip():
    own = {k: v for k, v in BERT.items()} | {"eos_token_id": 2}
    config = hf.CLIPConfig(text_config=own, vision_config=VIT, projection_dim=16)
    inputs = {
        "input_ids": ids(),
        "attention_mask": mask(),
        "pixel_values": torch.randn(2, 3, 32, 32),
    }
    return hf.CLIPModel(config), inputs


def spectrogram():
    config = hf.ASTConfig(**SMALL, intermediate_size=48, max_length=64, num_mel_bins=32)
    return hf.ASTForAudioClassification(config), {"input_values": torch.randn(2, 64, 32)}


def spectra():
    """FNet, which mixes by Fourier transforms and takes no mask."""
    return hf.FNetModel(hf.FNetConfig(**BERT)), {"input_ids": ids()}


def detr():
    backbone = hf.ResNetConfig(**RESNET, out_features=["stage4"])
    config = hf.DetrConfig(
        use_timm_backbone=False,
        backbone=None,
        use_pretrained_backbone=False,
        backbone_config=backbone,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_queries=10,
    )
    return hf.DetrForObjectDetection(config), {"pixel_values": torch.randn(1, 3, 64, 64)}


def rt_detr():
    backbone = hf.RTDetrResNetConfig(**RESNET, out_features=["stage2", "stage3", "stage4"])
    config = hf.RTDetrConfig(
        backbone_config=backbone,
        encoder_hidden_dim=32,
        encoder_in_channels=[24, 32, 48],
        encoder_ffn_dim=48,
        encoder_attention_heads=4,
        d_model=32,
        num_queries=20,
        decoder_in_channels=[32, 32, 32],
        decoder_ffn_dim=48,
        decoder_layers=2,
        decoder_attention_heads=4,
        num_denoising=0,
        num_labels=7,
    )
    return hf.RTDetrForObjectDetection(config), {"pixel_values": torch.randn(1, 3, 64, 64)}


def upernet():
    backbone = hf.ConvNextConfig(
        hidden_sizes=[16, 24, 32, 48],
        depths=[1, 1, 1, 1],
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = hf.UperNetConfig(
        backbone_config=backbone,
        hidden_size=32,
        num_labels=5,
        auxiliary_in_channels=32,
        auxiliary_channels=16,
    )
    return hf.UperNetForSemanticSegmentation(config), {"pixel_values": torch.randn(1, 3, 64, 64)}


def depth():
    config = hf.DPTConfig(
        **VIT | {"num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 16, 16, 16],
        fusion_hidden_size=16,
        is_hybrid=False,
    )
    return hf.DPTForDepthEstimation(config), {"pixel_values": torch.randn(1, 3, 32, 32)}


STAGES = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
ARCHITECTURES = {
    "albert": text("AlbertConfig", "AlbertModel", **BERT, embedding_size=16),
    "ast": spectrogram,
    "bert": text("BertConfig", "BertForSequenceClassification", **BERT),
    "clip": clip,
    "convnext": image("ConvNextConfig", "ConvNextForImageClassification", **STAGES),
    "deberta_v2": text(
        "DebertaV2Config",
        "DebertaV2Model",
        **BERT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        norm_rel_ebd="layer_norm",
    ),
    "detr": detr,
    "dinov2": image("Dinov2Config", "Dinov2Model", **VIT),
    "distilbert": text(
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        vocab_size=VOCAB,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=48,
        max_position_embeddings=40,
    ),
    "dpt": depth,
    "electra": text("ElectraConfig", "ElectraForTokenClassification", **BERT, embedding_size=16),
    "fnet": spectra,
    "gpt2": text("GPT2Config", "GPT2LMHeadModel", **GPT2, use_cache=False),
    "gpt2_cache": decoder("GPT2Config", "GPT2LMHeadModel", 4, 8, **GPT2),
    "hubert": sound("HubertConfig", "HubertModel", **SPEECH),
    "llama": text("LlamaConfig", "LlamaForCausalLM", **LLAMA, use_cache=False),
    "llama_cache": decoder("LlamaConfig", "LlamaForCausalLM", 2, 8, **LLAMA),
    "mamba": text(
        "MambaConfig",
        "MambaForCausalLM",
        vocab_size=VOCAB,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=2,
        use_cache=False,
    ),
    "mixtral": text(
        "MixtralConfig", "MixtralForCausalLM", **LLAMA, num_local_experts=4, use_cache=False
    ),
    "mobilevit": image(
        "MobileViTConfig",
        "MobileViTForImageClassification",
        64,
        hidden_sizes=[32, 40, 48],
        neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 64],
        image_size=64,
    ),
    "qwen3": text("Qwen3Config", "Qwen3ForCausalLM", **LLAMA, head_dim=8, use_cache=False),
    "resnet": image("ResNetConfig", "ResNetForImageClassification", 64, **RESNET),
    "roberta": text("RobertaConfig", "RobertaForTokenClassification", **BERT),
    "rt_detr": rt_detr,
    "segformer": image(
        "SegformerConfig",
        "SegformerForSemanticSegmentation",
        64,
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=32,
    ),
    "swin": image(
        "SwinConfig",
        "SwinForImageClassification",
        32,
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "t5": t5,
    "t5_encoder": text("T5Config", "T5EncoderModel", **T5),
    "upernet": upernet,
    "vit": image("ViTConfig", "ViTForImageClassification", **VIT),
    "wav2vec2": sound("Wav2Vec2Config", "Wav2Vec2ForCTC", **SPEECH),
    "whisper": whisper,
    "yolos": image(
        "YolosConfig",
        "YolosForObjectDetection",
        **VIT | {"image_size": [32, 32]},
        num_detection_tokens=5,
    ),
}
"""Makers of (module, inputs by name)."""


def build(name):
    """Return an architecture's module, in evaluation mode, and its inputs by name."""
    torch.manual_seed(SEED)
    module, inputs = ARCHITECTURES[name]()
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Conv1d, nn.Conv2d, hf.pytorch_utils.Conv1D)):
            axis = 1 if isinstance(part, hf.pytorch_utils.Conv1D) else 0
            fan = part.weight.numel() / part.weight.shape[axis]
            gain = 2 if isinstance(part, nn.Conv2d) else 1  # so that outputs depend on the input
            nn.init.normal_(part.weight, std=(gain / fan) ** 0.5)
    return module.eval(), inputs
