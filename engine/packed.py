"""A model's modules in a form that this processor computes faster: packed weights, and decoder layers of fewer calls.

Matrix products of a few rows read weights, and little else. Weights that float16 can hold, as those of most published
models, are kept in it (FBGEMM: what torch's dynamic quantization to float16 uses), others in the order in which
oneDNN's kernels read them (what torch's inductor does with a frozen model on the CPU). Both have a second virtue: each
row of a product comes out bit for bit the same, however many there are, or however many tiles of a few.

`pack` swaps modules of a loaded model in place, so that the model around them stays transformers' own: decoder layers
of the Llama family become one `PackedDecoderLayer` each, and any other `nn.Linear` a `PackedLinear`. On other devices
and processors everything stays as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, silu
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from engine.attention import attend
from engine.paged_batch import PagedBatch

ROWS = 16
"""The number of rows that oneDNN packs weights for. Fewer work as well; more come in multiples of this, since it
compiles and keeps a kernel for each number of rows that it meets."""
ROW_TILE = 8
"""Rows of a product that no packed weights take part in are equal bit for bit for all row counts that are multiples of
this (measured, and checked again at start: `engine.selfcheck`)."""
PIECE = 4096
"""Outputs of one FBGEMM product: weights of many more are packed slowly, and read once for each few rows."""
FBGEMM_ROWS = 120
"""FBGEMM cuts rows into pieces of so many, and a rest."""
PROBED = (40, 1100)
"""Weights, `(out, in)`, on which it is tried out: more than it takes at once, and no whole number of its columns."""
MAX_SCALE = 2.0**40
"""Of weights: rows are divided by it, and must not vanish."""
MAX_PACKERS = 4
"""Modules that are packed at once; each takes several times its own memory meanwhile."""
LLAMA_LAYERS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
"""Layers of transformers that compute what `PackedDecoderLayer` does."""


def can_pack(device: torch.device) -> bool:
    """oneDNN's packed weights have been tried on x86 only."""
    return (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    )


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that products of a model of `dtype` are computed in: float32 where oneDNN has no kernel for it here."""
    if dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return dtype
    if dtype == torch.float16 and torch.ops.mkldnn._is_mkldnn_fp16_supported():
        return dtype
    return torch.float32


class PackedWeight(Protocol):
    """Weights `[out, in]` of a product, in a kernel's own order; those of several products of one input are joined."""

    row_tile: int
    """Rows of the product are equal bit for bit for all row counts that are multiples of this."""

    def __call__(self, rows: Tensor) -> Tensor: ...

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        """The product plus `residual`."""
        ...


def pack_weight(*linears: nn.Linear) -> PackedWeight:
    """The weights of these modules as one, in the form that is read fastest; either all or none have a bias."""
    dtype = compute_dtype(linears[0].weight.dtype)
    weight = torch.cat([linear.weight.detach() for linear in linears]).to(dtype)
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    assert len(biases) in (0, len(linears))
    bias = torch.cat(biases).to(dtype) if biases else None
    row_tile, scale = half_row_tile(), half_scale(weight)
    if row_tile is None or scale is None:
        return FullWeight(weight, bias)
    return HalfWeight(weight, bias, scale, row_tile)


class FullWeight:
    """Weights in the type that their products are computed in, for oneDNN."""

    row_tile = 1

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(_whole(rows), self._weight, self._bias, "none", [], "")
        return product[..., : rows.shape[-2], :]

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            _whole(rows), _whole(residual), self._weight, self._bias, "add"
        )
        return product[..., : rows.shape[-2], :]


def _whole(rows: Tensor) -> Tensor:
    """Many rows `[..., rows, size]` filled up to a multiple of ROWS."""
    missing = -rows.shape[-2] % ROWS if rows.shape[-2] > ROWS else 0
    return pad(rows, (0, 0, 0, missing)) if missing else rows


class HalfWeight:
    """Weights kept in float16, for FBGEMM, which widens them on the way: half as much to read for float32 products."""

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: float, row_tile: int) -> None:
        self._scale = scale
        self.row_tile = row_tile
        biases = repeat(None) if bias is None else torch.split(bias, PIECE)
        self._pieces = [
            torch.ops.quantized.linear_prepack_fp16(piece * scale, piece_bias)
            for piece, piece_bias in zip(torch.split(weight, PIECE), biases, strict=False)
        ]

    def __call__(self, rows: Tensor) -> Tensor:
        if self._scale != 1:
            rows = rows / self._scale
        products = [torch.ops.quantized.linear_dynamic_fp16(rows, piece) for piece in self._pieces]
        return products[0] if len(products) == 1 else torch.cat(products, -1)

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self(rows).add_(residual)


@functools.cache
def half_row_tile() -> int | None:
    """The least number of rows whose multiples FBGEMM computes alike here, each row for itself; None without FBGEMM.

    It cuts rows into kernels of several sizes, and some of these sum up in an order of their own. Only divisors of
    FBGEMM_ROWS are looked at: multiples of others leave rests of all sizes behind the first piece.
    """
    if torch.backends.quantized.engine not in ("x86", "fbgemm"):
        return None
    most = FBGEMM_ROWS
    generator = torch.Generator().manual_seed(0)
    weight = HalfWeight(torch.randn(PROBED, generator=generator), None, 1.0, 1)
    row = torch.randn(1, PROBED[1], generator=generator)
    expected = weight(row.expand(most, -1))[:1]
    alike = [torch.equal(weight(row.expand(count, -1)), expected.expand(count, -1)) for count in range(1, most + 1)]
    return next((tile for tile in range(1, most) if most % tile == 0 and all(alike[tile - 1 :: tile])), None)


def half_scale(weight: Tensor) -> float | None:
    """The power of two that makes float32 weights fit into float16; None if they lose by it.

    Most models are published in 16 bits, and fit. No more may be lost of a weight than float32 rounds off from the
    largest one of the same output.
    """
    if weight.dtype != torch.float32:
        return None
    largest = max(abs(float(bound)) for bound in torch.aminmax(weight))
    if not math.isfinite(largest):
        return None
    if torch.equal(weight.half().float(), weight):
        return 1.0
    for scale in (1.0, min(2.0 ** (15 - math.frexp(largest)[1]), MAX_SCALE)):
        lost = weight.mul(scale).half().float().div_(scale).sub_(weight).abs_().amax(1)
        if bool((lost <= weight.abs().amax(1) * torch.finfo(torch.float32).eps / 2).all()):
            return scale
    return None


class PackedLinear(nn.Module):
    """Computes what the `nn.Linear` does that it is made of."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.dtype = compute_dtype(linear.weight.dtype)
        self.weight = pack_weight(linear)

    def forward(self, rows: Tensor) -> Tensor:
        return self.weight(rows.to(self.dtype)).to(rows.dtype)


class PackedDecoderLayer(nn.Module):
    """A layer of the Llama family on the paged cache, in the form that transformers calls.

    Against transformers' own modules with packed weights: products of the same input are one product, residuals are
    added where products are made, and positions are turned in place.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        attention: Any = layer.self_attn
        mlp: Any = layer.mlp
        self.layer_idx: int = attention.layer_idx
        self.scaling: float = attention.scaling
        self.head_dim: int = attention.head_dim
        self.num_heads = attention.q_proj.out_features // self.head_dim
        self.num_kv_heads = attention.k_proj.out_features // self.head_dim
        self.input_norm = _Norm(layer.input_layernorm)
        self.q_norm = _Norm(attention.q_norm) if hasattr(attention, "q_norm") else None
        self.k_norm = _Norm(attention.k_norm) if hasattr(attention, "k_norm") else None
        self.qkv = pack_weight(attention.q_proj, attention.k_proj, attention.v_proj)
        self.output = pack_weight(attention.o_proj)
        self.mlp_norm = _Norm(layer.post_attention_layernorm)
        self.gate_up = pack_weight(mlp.gate_proj, mlp.up_proj)
        self.down = pack_weight(mlp.down_proj)
        self.dtype = compute_dtype(mlp.down_proj.weight.dtype)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        paged_batch: PagedBatch,
        **kwargs: object,
    ) -> Tensor:
        """hidden_states `[1, rows, hidden_size]`, in and out."""
        rows = hidden_states[0].to(self.dtype)
        heads = self.qkv(self.input_norm(rows)).view(len(rows), -1, self.head_dim)
        queries = heads[:, : self.num_heads]
        states = heads[:, self.num_heads :].view(len(rows), 2, self.num_kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            queries.copy_(self.q_norm(queries))
            states[:, 0] = self.k_norm(states[:, 0])
        _rotate(heads[:, : self.num_heads + self.num_kv_heads], *position_embeddings)
        attended = attend(self.layer_idx, queries, states, paged_batch, self.scaling)
        rows = self.output.plus(attended.flatten(1), rows)
        gate, up = self.gate_up(self.mlp_norm(rows)).chunk(2, 1)
        rows = self.down.plus(silu(gate).mul_(up), rows)
        return rows[None].to(hidden_states.dtype)


class _Norm:
    """RMS normalization of the last dimension, with the weights of transformers' module.

    In three passes over the rows; torch's own takes seven.
    """

    def __init__(self, norm: Any) -> None:
        weight: Tensor = norm.weight.detach().float()
        # x / sqrt(|x|^2 / size + eps) = sqrt(size) x / sqrt(|x|^2 + size eps)
        self._weight = weight * len(weight) ** 0.5
        self._eps: float = len(weight) * norm.variance_epsilon

    def __call__(self, rows: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
        normed: Tensor = (rows * self._weight).div_(lengths.square_().add_(self._eps).sqrt_())
        return normed.to(rows.dtype)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn queries and keys `[rows, heads, head_dim]` by their positions, in place (rotary embedding, Su et al. 2021).

    cos, sin `[1, rows, head_dim]`: both halves are the same.
    """
    half = heads.shape[-1] // 2
    cos, sin = cos[0, :, None].to(heads.dtype), sin[0, :, None, :half].to(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    from_second, from_first = second * sin, first * sin
    heads.mul_(cos)
    first.sub_(from_second)
    second.add_(from_first)


def pack(model: PreTrainedModel) -> None:
    """Swap the model's modules for packed ones, in place, if its device computes faster with them.

    Each module's own weights go as soon as they are packed; what a model shares with its embeddings stays for these.
    """
    if is_packed(model) or not can_pack(model.device):
        return
    half_row_tile()  # here, and not in each of several threads
    _swap(model, _is_llama_layer, PackedDecoderLayer)
    _swap(model, lambda module: type(module) is nn.Linear, PackedLinear)
    for parameter in model.parameters():
        # What is left of the model lies in a mapped file, all of which would stay in memory with it.
        parameter.data = parameter.data.clone()
    _return_memory()


def _swap(model: PreTrainedModel, chosen: Callable[[nn.Module], bool], packed: Callable[[Any], nn.Module]) -> None:
    """Put `packed(module)` in the place of each chosen module, several at once: packing is most of a model's start."""

    def swap(parent: nn.Module, name: str) -> None:
        setattr(parent, name, packed(getattr(parent, name)))

    places = [
        (parent, name) for parent in model.modules() for name, module in parent.named_children() if chosen(module)
    ]
    with ThreadPoolExecutor(min(MAX_PACKERS, os.cpu_count() or 1)) as pool:
        list(pool.map(swap, *zip(*places, strict=True)))


def _return_memory() -> None:
    """To the system: glibc keeps what packing freed, a quarter of a gigabyte for the smallest of models."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def is_packed(model: PreTrainedModel) -> bool:
    return any(isinstance(module, PackedLinear | PackedDecoderLayer) for module in model.modules())


def is_packed_whole(model: PreTrainedModel) -> bool:
    """No product is left that another kernel computes; tables that are only looked up do not count."""
    return is_packed(model) and not any(
        parameter.ndim > 1
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    )


def row_tile(model: PreTrainedModel) -> int:
    """Rows that have to come together for each to be the same bits whatever the others are."""
    values = (value for module in model.modules() for value in vars(module).values())
    tiles = {value.row_tile for value in values if isinstance(value, FullWeight | HalfWeight)}
    return math.lcm(*tiles, 1 if is_packed_whole(model) else ROW_TILE)


def _is_llama_layer(module: nn.Module) -> bool:
    kind = type(module)
    if kind.__name__ not in LLAMA_LAYERS or not kind.__module__.startswith("transformers."):
        return False
    attention: Any = module.self_attn
    mlp: Any = module.mlp
    linears: Sequence[object] = (
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        attention.o_proj,
        mlp.gate_proj,
        mlp.up_proj,
        mlp.down_proj,
    )
    return all(type(linear) is nn.Linear for linear in linears) and type(mlp.act_fn) is type(ACT2FN["silu"])
