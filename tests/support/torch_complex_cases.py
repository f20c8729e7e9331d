"""Cases of the PyTorch converter on complex numbers: an ATen op, a function, makers of inputs.

Importing this module needs torch. Inputs are pairs [..,2] or real, outputs are real.
"""

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

A, C, R = torch.ops.aten, torch.view_as_complex, torch.view_as_real


def f(*shape, low=-2.0, high=2.0):
    """Return a maker of floats."""
    return lambda rng: torch.from_numpy(rng.uniform(low, high, shape).astype(np.float32))


def on_pairs(function):
    """Return a function of pairs: that of complex numbers, with its result as pairs."""

    def run(*pairs):
        made = function(*map(C, pairs))
        parts = made if isinstance(made, (tuple, list)) else [made]
        shown = tuple(R(one) if one.is_complex() else one for one in parts)
        return shown if len(shown) > 1 else shown[0]

    return run


X, Z, SQUARE = f(3, 8), f(3, 4, 2), f(2, 4, 4, 2)
WINDOW = torch.hann_window(16)
PLACES = torch.tensor([2, 0])


def rotated(pairs, angles):
    """Turn pairs of features, as rotary positions do."""
    return R(C(pairs) * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def spectrogram(x, center=True):
    """The complex spectrogram of a wave."""
    return torch.stft(x, 16, 4, window=WINDOW, center=center, return_complex=True)


def padded(z):
    """Pads of a constant that is no zero."""
    return F.pad(z, (1, 2), value=0.5)


COMPLEX = [
    ("_conj", lambda x: (torch.fft.fft(x).conj() * torch.fft.fft(x)).real, X),
    ("_conj_physical", on_pairs(lambda z: A._conj_physical(z)), Z),
    ("_fft_c2c", on_pairs(torch.fft.fft), Z),
    ("_fft_c2c", on_pairs(lambda z: torch.fft.ifft(z, dim=0)), Z),
    ("_fft_c2c", on_pairs(lambda z: torch.fft.fftn(z, norm="ortho")), Z),
    ("_fft_c2c", on_pairs(lambda z: torch.fft.ifft2(z, norm="forward")), Z),
    ("_fft_c2c", on_pairs(lambda z: torch.fft.fft(z, norm="forward")), Z),
    ("_fft_c2r", lambda x: torch.fft.irfft(torch.fft.rfft(x)), X),
    ("_fft_c2r", on_pairs(lambda z: torch.fft.irfft(z, n=9, norm="ortho")), f(3, 5, 2)),
    ("_fft_c2r", on_pairs(lambda z: torch.fft.irfft2(z, norm="forward")), Z),
    ("_fft_c2r", lambda x: torch.fft.hfft(torch.fft.ihfft(x), n=8), X),
    ("_fft_c2r", lambda x: torch.istft(spectrogram(x), 16, 4, window=WINDOW), f(2, 64)),
    ("_fft_r2c", lambda x: torch.fft.rfft2(x).abs(), X),
    ("_fft_r2c", lambda x: R(torch.fft.rfft(x, norm="ortho")), f(3, 7)),
    ("_fft_r2c", lambda x: R(torch.fft.fft(x, n=12)), X),
    ("_fft_r2c", lambda x: spectrogram(x).abs(), f(2, 64)),
    ("_fft_r2c", lambda x: R(spectrogram(x, center=False)), f(2, 64)),
    ("_fft_r2c", lambda x: R(torch.fft.fft(x.double())), X),
    ("_to_copy", lambda x: R(x.to(torch.complex64) * 2j), X),
    ("_to_copy", on_pairs(lambda z: z.to(torch.complex128)), Z),
    ("abs", on_pairs(torch.abs), Z),
    ("add.Tensor", on_pairs(lambda a, b: torch.add(a, b, alpha=2)), Z, Z),
    ("add.Tensor", lambda z, x: R(C(z) + x), Z, f(2, 3, 4)),
    ("add.Scalar", on_pairs(lambda z: A.add.Scalar(z, 2)), Z),
    ("alias", on_pairs(lambda z: A.alias(z)), Z),
    ("angle", on_pairs(torch.angle), Z),
    ("as_strided", on_pairs(lambda z: (z * 2).as_strided((2, 3), (4, 1), 1)), Z),
    ("bmm", on_pairs(torch.bmm), SQUARE, SQUARE),
    ("cat", lambda z, x: R(torch.cat([C(z), x.to(torch.complex64)])), Z, f(2, 4)),
    ("clone", on_pairs(lambda z: z.clone()), Z),
    ("complex", lambda x, y: R(torch.complex(x, y)), X, X),
    ("complex", lambda x, y: R(torch.complex(x, y)), X, f(8)),
    ("constant_pad_nd", on_pairs(padded), Z),
    ("copy", on_pairs(lambda a, b: A.copy(a, b)), Z, f(4, 2)),
    ("cumsum", on_pairs(lambda z: z.cumsum(1)), Z),
    ("diagonal", on_pairs(lambda z: z.diagonal(1)), Z),
    ("div.Tensor", on_pairs(lambda a, b: a / b), Z, f(3, 4, 2, low=0.5)),
    ("div.Tensor", lambda x, z: R(x / C(z)), f(3, 4), f(3, 4, 2, low=0.5)),
    ("div.Tensor", lambda z, x: R(C(z) / x), Z, f(3, 4, low=0.5)),
    ("div.Scalar", on_pairs(lambda z: A.div.Scalar(z, 3)), Z),
    ("einsum", on_pairs(lambda a, b: torch.einsum("bij,bkj->ik", a, b)), SQUARE, SQUARE),
    ("einsum", on_pairs(lambda a: torch.einsum("bii->b", a)), SQUARE),
    ("eq.Tensor", lambda x: torch.complex(x, x.relu()) == x, X),
    ("eq.Scalar", lambda x: torch.complex(x.relu(), x.relu()) == 0, X),
    ("exp", lambda x: R(torch.exp(1j * x)), X),
    ("expand", on_pairs(lambda z: z.expand(2, 3, 4)), Z),
    ("flip", on_pairs(lambda z: z.flip(0)), Z),
    ("full", lambda x: R(x + torch.full((3, 1), 1 + 2j)), X),
    ("full_like", on_pairs(lambda z: z + torch.zeros_like(z)), Z),
    ("gather", on_pairs(lambda z: z.gather(0, PLACES.expand(1, 2))), Z),
    ("index.Tensor", on_pairs(lambda z: z[:, PLACES]), Z),
    ("index_put", on_pairs(lambda a, b: a.index_put((PLACES,), b)), Z, f(2, 4, 2)),
    ("index_select", on_pairs(lambda z: z.index_select(1, PLACES)), Z),
    ("matmul", on_pairs(lambda a, b: a @ b), SQUARE, f(4, 2)),
    ("mean", on_pairs(torch.mean), Z),
    ("mean.dim", on_pairs(lambda z: z.mean(0)), Z),
    ("mm", on_pairs(torch.mm), Z, f(4, 2, 2)),
    ("mm", lambda z, w: R(torch.mm(C(z), w.to(torch.complex64))), Z, f(4, 2)),
    ("mul.Tensor", rotated, f(2, 5, 4, 2), f(5, 4)),
    ("mul.Tensor", lambda z, x: R(C(z) * x), Z, f(3, 4)),
    ("mul.Tensor", lambda x: R(x * 2j), X),
    ("mul.Scalar", on_pairs(lambda z: A.mul.Scalar(z, 3)), Z),
    ("ne.Tensor", lambda x: torch.complex(x, x.relu()) != x, X),
    ("ne.Scalar", lambda x: torch.complex(x.relu(), x.relu()) != 0, X),
    ("neg", on_pairs(torch.neg), Z),
    ("permute", on_pairs(lambda z: z.T), Z),
    ("polar", lambda x, y: R(torch.polar(x, y)), f(3, 8, low=0), X),
    ("pow.Tensor_Scalar", on_pairs(lambda z: z**3), Z),
    ("reciprocal", on_pairs(torch.reciprocal), f(3, 4, 2, low=0.5)),
    ("repeat", on_pairs(lambda z: z.repeat(2, 1)), Z),
    ("select.int", on_pairs(lambda z: z[:, 1]), Z),
    ("slice.Tensor", on_pairs(lambda z: z[1:, ::2]), Z),
    ("slice_scatter", on_pairs(lambda a, b: a.slice_scatter(b, 1, 1, 3)), Z, f(3, 2, 2)),
    ("split_with_sizes", on_pairs(lambda z: z.split([1, 3], 1)), Z),
    ("square", on_pairs(torch.square), Z),
    ("squeeze.dims", on_pairs(lambda z: z.squeeze()), f(3, 1, 4, 2)),
    ("sub.Tensor", on_pairs(lambda a, b: a - b), Z, f(4, 2)),
    ("sub.Tensor", lambda x, z: R(x - C(z)), f(3, 4), Z),
    ("sub.Scalar", on_pairs(lambda z: A.sub.Scalar(z, 2)), Z),
    ("sum.dim_IntList", on_pairs(lambda z: z.sum(1)), Z),
    ("tril", on_pairs(torch.tril), Z),
    ("triu", on_pairs(torch.triu), Z),
    ("unfold", on_pairs(lambda z: z.unfold(1, 2, 1)), Z),
    ("unsqueeze", on_pairs(lambda z: z.unsqueeze(0)), Z),
    ("view", on_pairs(lambda z: (z * 1j).reshape(2, 6)), Z),
    ("view_as_complex", lambda z: C(z).abs(), Z),
    ("view_as_real", lambda z: C(z).imag, Z),
    ("where.self", lambda x, z: R(torch.where(x > 0, C(z), x)), f(3, 4), Z),
]
"""Cases as torch_cases.py has them."""
