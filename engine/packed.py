"""A model's modules in a form that this processor computes faster: packed weights, and decoder layers of fewer calls.

Matrix products of a few rows read weights, and little else. oneDNN keeps them in the order in which its kernels read
them (what torch's inductor does with a frozen model on the CPU), and these kernels have a second virtue: each row of a
product comes out bit for bit the same, however many there are.

`pack` swaps modules of a loaded model in place, so that the model around them stays transformers' own: decoder layers
of the Llama family become one `PackedDecoderLayer` each, and any other `nn.Linear` a `PackedLinear`. On other devices
and processors everything stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from engine.attention import PagedBatch, attend

ROWS = 16
"""The number of rows that weights are packed for; any other number works with them as well."""
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


class PackedWeight:
    """Weights `[out, in]` of a product, in oneDNN's order; those of several products of one input are joined."""

    def __init__(self, *linears: nn.Linear) -> None:
        dtype = compute_dtype(linears[0].weight.dtype)
        joined = torch.cat([linear.weight.detach() for linear in linears]).to(dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(joined, ROWS)
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self._bias = torch.cat(biases).to(dtype) if biases else None

    def __call__(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return product

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        """The product plus `residual`, in one pass."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, residual, self._weight, self._bias, "add")
        return product


class PackedLinear(nn.Module):
    """Computes what the `nn.Linear` does that it is made of."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.dtype = compute_dtype(linear.weight.dtype)
        self.weight = PackedWeight(linear)

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
        self.qkv = PackedWeight(attention.q_proj, attention.k_proj, attention.v_proj)
        self.output = PackedWeight(attention.o_proj)
        self.mlp_norm = _Norm(layer.post_attention_layernorm)
        self.gate_up = PackedWeight(mlp.gate_proj, mlp.up_proj)
        self.down = PackedWeight(mlp.down_proj)
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
        queries, keys, values = torch.split(heads, [self.num_heads, self.num_kv_heads, self.num_kv_heads], 1)
        if self.q_norm is not None and self.k_norm is not None:
            queries.copy_(self.q_norm(queries))
            keys.copy_(self.k_norm(keys))
        _rotate(heads[:, : self.num_heads + self.num_kv_heads], *position_embeddings)
        attended = attend(self.layer_idx, queries, keys, values, paged_batch, self.scaling)
        rows = self.output.plus(attended.flatten(1), rows)
        gate, up = self.gate_up(self.mlp_norm(rows)).chunk(2, 1)
        rows = self.down.plus(silu(gate).mul_(up), rows)
        return rows[None].to(hidden_states.dtype)


class _Norm:
    """RMS normalization of the last dimension, with the weights of transformers' module."""

    def __init__(self, norm: Any) -> None:
        weight: Tensor = norm.weight.detach()
        self._weight = weight.to(compute_dtype(weight.dtype), copy=True)
        self._eps: float = norm.variance_epsilon

    def __call__(self, rows: Tensor) -> Tensor:
        return rms_norm(rows, self._weight.shape, self._weight, self._eps)


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
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if _is_llama_layer(module):
                setattr(parent, name, PackedDecoderLayer(module))
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if type(module) is nn.Linear:
                setattr(parent, name, PackedLinear(module))
    for parameter in model.parameters():
        # What is left of the model lies in a mapped file, all of which would stay in memory with it.
        parameter.data = parameter.data.clone()


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
