"""Load a GGUF file through transformers, and mend what its reader loses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, PretrainedConfig, PreTrainedModel

from engine.progress import ModelError, one_line


def load_gguf(
    path: Path, check_config: Callable[[PretrainedConfig], None], dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, Any]:
    """Model (dequantized) and tokenizer of a .gguf file. Raises ModelError."""
    folder, name = path.parent, path.name
    try:
        config = AutoConfig.from_pretrained(folder, gguf_file=name, trust_remote_code=False)
    except Exception as error:  # a reader of foreign files may throw anything
        raise ModelError(f"{path} cannot be read as GGUF: {one_line(error)}") from error
    check_config(config)
    try:
        with redirect_stderr(StringIO()):  # a progress bar of the reader's own, which nothing else switches off
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name, trust_remote_code=False)
            model = AutoModelForCausalLM.from_pretrained(
                folder,
                gguf_file=name,
                dtype=dtype,
                trust_remote_code=False,
                # without it transformers keeps the weights packed and unpacks them in every layer of every step
                quantization_config=GgufConfig(gguf_file=name, dequantize=True),
            )
    except Exception as error:
        raise ModelError(f"the model in {path} cannot be loaded: {one_line(error)}") from error
    _forget_quantization(model)
    if _pre_tokenizer_name(path) == "smollm":
        # The reader drops this rule; without it numbers become tokens that the model never saw in training.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return model, tokenizer


def _forget_quantization(model: PreTrainedModel) -> None:
    """The weights are plain tensors now; let the model be saved as such."""
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)
    model.hf_quantizer = None
    model.is_quantized = False


def _pre_tokenizer_name(path: Path) -> str:
    field = GGUFReader(path).fields.get("tokenizer.ggml.pre")
    return "" if field is None else str(field.contents())
