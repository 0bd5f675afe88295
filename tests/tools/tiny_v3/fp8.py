"""FP8 E4M3 in 128x128 blocks, as released: W = fp8 * scale_inv of its block, ragged last blocks included."""
import torch

BLOCK = 128
MAX = 448.0


def _blocks(w):
    """[..., M, N] padded with zeros to whole blocks, viewed [..., mb, 128, nb, 128]."""
    m, n = w.shape[-2:]
    mb, nb = -(-m // BLOCK), -(-n // BLOCK)
    w = torch.nn.functional.pad(w, (0, nb * BLOCK - n, 0, mb * BLOCK - m))
    return w.view(*w.shape[:-2], mb, BLOCK, nb, BLOCK)


def quantise(w):
    """float32 [..., M, N] -> (float8_e4m3fn [..., M, N], float32 scale_inv [..., ceil(M/128), ceil(N/128)])."""
    b = _blocks(w.float())
    scale = b.abs().amax((-3, -1)).clamp(min=1e-12) / MAX
    q = (b / scale[..., :, None, :, None]).clamp(-MAX, MAX).to(torch.float8_e4m3fn)
    q = q.reshape(*w.shape[:-2], b.shape[-4] * BLOCK, b.shape[-2] * BLOCK)[..., :w.shape[-2], :w.shape[-1]]
    return q.contiguous(), scale


def dequantise(q, scale):
    b = _blocks(q.float()) * scale[..., :, None, :, None]
    full = b.reshape(*q.shape[:-2], b.shape[-4] * BLOCK, b.shape[-2] * BLOCK)
    return full[..., :q.shape[-2], :q.shape[-1]].contiguous()
