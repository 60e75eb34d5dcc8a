"""A layer's small operations in C++, against torch in float64."""

import pytest
import torch
import torch.nn.functional as F

from nanoengine import NanoengineError, kernels
from nanoengine.kernels import native, torch_reference
from nanoengine.models.linear import FEW_ROWS, FEW_ROWS_BESIDE_PACKED, Linear

if reason := native.why_not():
    pytest.skip(reason, allow_module_level=True)

LANES = native.load().lanes
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}  # of bfloat16: half a unit in the last place of 1


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def close(found, exact, dtype):
    assert found.dtype == dtype and found.shape == exact.shape
    error = (found.double() - exact).abs() / (1 + exact.abs())
    return error.nan_to_num(nan=torch.inf).max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("out_width", "in_width"), [(LANES, LANES), (3 * LANES, 5 * LANES), (576, 1536)])
def test_a_product_with_few_rows(threads, out_width, in_width, dtype):
    weight = (torch.randn(out_width, in_width) / in_width**0.5).to(dtype)
    bias = torch.randn(2 * out_width, dtype=dtype)[::2]
    for n in (1, 2, 3, 4, 5, 9):
        x = torch.randn(n, in_width, dtype=dtype)
        assert close(native.RowLinear(weight)(x), x.double() @ weight.double().T, dtype)
        strided = torch.stack((x, x), dim=-1)[..., 0]
        assert close(native.RowLinear(weight, bias)(strided), F.linear(*(t.double() for t in (x, weight, bias))), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_other_rows_do_not_change_a_bit(threads, dtype):
    layer = native.RowLinear(torch.randn(96, 192, dtype=dtype))
    x = torch.randn(9, 192, dtype=dtype)
    together = layer(x)
    assert all(torch.equal(layer(x[i : i + 1])[0], together[i]) for i in range(9))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("n", [1, 7, 300])
def test_norm_and_gate(threads, n, dtype):
    x, weight = 3 * torch.randn(n, 576, dtype=dtype), torch.randn(576, dtype=dtype)
    assert close(native.rms_norm(x, weight, 1e-5), torch_reference.rms_norm(x.double(), weight.double(), 1e-5), dtype)
    assert close(native.silu_mul(x), torch_reference.silu_mul(x.double()), dtype)
    heads = x.view(n, 9, 64)[:, 2:5]
    expected = torch_reference.rms_norm(heads.double(), weight[:64].double(), 1e-5)
    assert close(native.rms_norm(heads, weight[:64], 1e-5), expected, dtype)


def test_a_gate_far_from_zero_neither_overflows_nor_loses_a_nan():
    gate = torch.zeros(2 * LANES)
    gate[:6] = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4, float("nan")])
    out = native.silu_mul(torch.cat((gate, torch.ones(2 * LANES)))[None])[0]
    assert torch.allclose(out[:5], torch.tensor([0.0, 0.0, 0.0, 90.0, 1e4]))
    assert out[5].isnan()


def test_rounding_to_bfloat16_is_that_of_torch():
    x = torch.tensor([1.00390625, 1.01171875, -3.0e38, 3.4e38, float("inf"), float("nan"), 1e-40, -0.0])
    # The sum of two bfloat16 values, made by a product, is what has to be rounded.
    a = x.bfloat16()
    b = (x - a.float()).nan_to_num(nan=0, posinf=0, neginf=0).bfloat16()
    weight = torch.zeros(LANES, 2 * LANES, dtype=torch.bfloat16)
    weight[:, 0] = weight[:, LANES] = 1
    rows = torch.zeros(len(a), 2 * LANES, dtype=torch.bfloat16)
    rows[:, 0], rows[:, LANES] = a, b
    found = native.RowLinear(weight)(rows)[:, 0]
    assert torch.equal(found.nan_to_num(nan=7), (a.float() + b.float()).bfloat16().nan_to_num(nan=7))


@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_gives_the_same_whatever_serves_it(monkeypatch, dtype, bias):
    weight = (torch.randn(96, 64) / 8).to(dtype)
    bias = torch.randn(96, dtype=dtype) if bias else None
    monkeypatch.delenv("NANOENGINE_KERNELS", raising=False)
    fast = Linear(weight, bias)
    monkeypatch.setenv("NANOENGINE_KERNELS", "torch")
    plain = Linear(weight, bias)
    assert fast.num_bytes == plain.num_bytes == weight.nbytes + (bias.nbytes if bias is not None else 0)
    for n in (1, FEW_ROWS_BESIDE_PACKED, FEW_ROWS_BESIDE_PACKED + 1, FEW_ROWS, FEW_ROWS + 1, 40):
        x = torch.randn(n, 64, dtype=dtype)
        exact = F.linear(x.double(), weight.double(), bias.double() if bias is not None else None)
        for layer in (fast, plain):
            assert ((layer(x).double() - exact).abs() / (1 + exact.abs())).max() < TOLERANCE.get(dtype, 2**-9)


def test_what_the_kernels_do_not_take_goes_to_torch_or_is_named(monkeypatch):
    monkeypatch.delenv("NANOENGINE_KERNELS", raising=False)
    odd = torch.randn(3, LANES + 1)
    assert torch.equal(kernels.rms_norm(odd, torch.ones(LANES + 1), 1e-5), F.rms_norm(odd, (LANES + 1,), eps=1e-5))
    assert kernels.silu_mul(torch.randn(3, 3 * LANES)[:, : LANES + 2]).shape == (3, (LANES + 2) // 2)
    assert not kernels.reads_in_place(torch.randn(LANES + 1, LANES))
    assert not kernels.reads_in_place(torch.randn(LANES, 2 * LANES)[:, ::2])
    for refused in (
        lambda: native.rms_norm(odd, torch.ones(LANES + 1), 1e-5),
        lambda: native.rms_norm(odd[:, 1:], torch.ones(LANES + 1), 1e-5),
        lambda: native.silu_mul(odd[:, 1:]),
        lambda: native.RowLinear(torch.randn(LANES + 1, LANES)),
        lambda: native.RowLinear(torch.randn(LANES, LANES, dtype=torch.float16)),
        lambda: native.RowLinear(torch.randn(LANES, LANES), torch.randn(LANES + 1)),
        lambda: native.RowLinear(torch.randn(LANES, LANES))(torch.randn(2, 2 * LANES)),
        lambda: native.RowLinear(torch.randn(LANES, LANES))(torch.randn(2, LANES, dtype=torch.bfloat16)),
    ):
        with pytest.raises(NanoengineError):
            refused()
