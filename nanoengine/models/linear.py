"""A linear layer whose weights are laid out once, at load, the way the CPU reads them fastest."""

import torch
import torch.nn.functional as F

from nanoengine import kernels
from nanoengine.kernels.native import RowLinear

# Up to so many rows, reading the weights is what takes time, and the native kernel reads best. Beyond, in bfloat16, the
# processor's own matrix instructions win, where it has them; they want another layout.
FEW_ROWS = 16
FEW_ROWS_BESIDE_PACKED = 4


class Linear:
    """y = x W^T + b for x [N, in], W [out, in], b [out] or None, all of one dtype.

    On a CPU few rows go through the native kernel. Many go through oneDNN, the library that torch itself calls: in
    bfloat16 from a second copy of the weights, reordered for it (4 bytes a parameter in all), in float32 from the one
    that is there. Without a compiler all rows go the second way, from the reordered weights alone; where those
    operators are missing too the layer is a plain F.linear.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self.bias = bias
        self.num_bytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        in_place = kernels.reads_in_place(weight)
        prepack = can_prepack(weight) and not (in_place and weight.dtype is torch.float32)
        self._row_linear = RowLinear(weight, bias) if in_place else None
        self._few_rows = 0 if not in_place else FEW_ROWS_BESIDE_PACKED if prepack else FEW_ROWS
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None) if prepack else None
        self._weight = None if prepack else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) <= self._few_rows:
            return self._row_linear(x)
        if self._packed is not None:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
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
