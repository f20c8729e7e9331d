"""The node cases of ONNX that fail here, and why: one line for each reason.

A case must fail with the words of its line, so the list shrinks as reasons go
(converters/onnx/test_node.py).
"""

import fnmatch
from dataclasses import dataclass
from typing import Literal

Way = Literal["references", "sessions"]


@dataclass(frozen=True)
class Known:
    """Cases that fail for one reason.

    error: words of the error
    cases: names without "test_", with wildcards
    fails_in: the references alone, sessions alone, or both
    """

    reason: str
    error: str
    cases: tuple[str, ...]
    fails_in: tuple[Way, ...] = ("references", "sessions")

    def holds(self, name: str) -> bool:
        """Whether a case is among these."""
        return any(fnmatch.fnmatch(name, f"test_{pattern}") for pattern in self.cases)


_APART = "Not equal to tolerance"
_LOOPED = "a loop or a branch makes a sequence, whose length only a run tells"
_NEARLY_0 = "nearly 0 here, 2e-7 there; the limit is 1e-7"
KNOWN = (
    Known(
        "one unit in the last place apart: rounded once here, after each step there, which is "
        "further from the exact result",
        _APART,
        (
            "attention_[34]d_causal_bf16*",
            "attention_4d_causal_fp16*",
            "attention_4d_*padded_kv_bf16*",
            "attention_4d_attn_mask_causal_bf16*",
        ),
    ),
    Known("random numbers differ", "RandomUniformLike", ("bernoulli*",)),
    Known(_NEARLY_0, _APART, ("dft_inverse",)),
    Known(_NEARLY_0, _APART, ("dft_inverse_opset19",), ("references",)),
    Known(
        "sums in float32 are nearly 0, not 0; the limit is 1e-7",
        _APART,
        ("dft_axis_opset19", "dft_opset19", "dft_rfft_opset19"),
        ("sessions",),
    ),
    Known("dropout of training draws random numbers", "training", ("training_dropout*",)),
    Known(_LOOPED, "is a sequence, not a tensor", ("if_seq",)),
    Known(_LOOPED, "input 0 is missing", ("if_opt",)),
    Known(_LOOPED, "whose length is not known", ("loop13_seq",)),
    Known(_LOOPED, "0 states are given", ("loop16_seq_none", "sequence_map_*_expanded")),
    Known(
        "only a run tells whether an optional input is there",
        "",
        ("optional_has_element_empty_optional_input",),
    ),
    Known(
        "only a run tells the position, or where to split",
        "is not constant",
        ("sequence_insert_at_front", "split_to_sequence_[12]"),
    ),
    Known(
        "sizes are rounded, as in ONNX Runtime",
        _APART,
        ("resize_downsample_scales_*_align_corners",),
    ),
    Known("Scan of opset 8 scans a batch", "opset 8 is not supported", ("scan_sum",)),
)
MOST_KNOWN = 45
"""How many cases fail in sessions; it only falls."""


def known(name: str, way: Way) -> Known | None:
    """Return why a case fails in one way to run it, None where it must pass."""
    lines = (line for line in KNOWN if way in line.fails_in)
    return next((line for line in lines if line.holds(name)), None)
