"""A linear layer whose weights are laid out once, at load, the way the CPU reads them fastest."""

import torch
import torch.nn.functional as F


class Linear:
    """y = x W^T + b for x [N, in], W [out, in], b [out] or None, all of one dtype.

    On a CPU the weights are reordered by oneDNN, the library that torch itself calls; in float32 this reads them
    about twice as fast as F.linear at batch 1 on some machines (`make bench` prints both). Where the operators are
    missing the layer is a plain F.linear.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self.bias = bias
        self.num_bytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        self._prepacked = can_prepack(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if self._prepacked else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._prepacked:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
        return F.linear(x, self._weight, self.bias)


def can_prepack(weight: torch.Tensor) -> bool:
    """Whether oneDNN takes this weight: CPU, float32 or bfloat16, and the operators shipped with this torch."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()
        and (weight.dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
