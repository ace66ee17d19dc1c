"""Find and load a model and its tokenizer: an alias, a folder, a .gguf file or a hub id.

Everything that can go wrong on the way ends as a ModelError with one sentence for a person. Weights come as
safetensors or GGUF only, and no code that comes with a model is ever run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from engine import smollm2, tiny
from engine.gguf_file import load_gguf
from engine.locate import locate
from engine.progress import ModelError, Progress, Report, one_line
from engine.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can be run, and what the screen says of it."""

    name: str
    model: PreTrainedModel
    tokenizer: Tokenizer
    random_weights: bool = False
    num_parameters: int = field(init=False)
    """As it was loaded: a runner packs the model, after which most of them are no parameters."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_parameters", self.model.num_parameters())

    @property
    def vocab_size(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])


def load_model(
    spec: str, *, dtype: str = "auto", device: str = "cpu", threads: int | None = None, report: Report = lambda _: None
) -> LoadedModel:
    """Load what `spec` names: `smollm2`, `tiny`, a folder, a `.gguf` file or a hub id such as `Qwen/Qwen3-0.6B`.

    `dtype`: float32, bfloat16, float16, or auto (float32 on the CPU, where results can be kept bit for bit;
    bfloat16 elsewhere). `threads`: CPU threads for torch; None leaves torch's own choice. Raises ModelError.
    """
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    if threads is not None:
        torch.set_num_threads(threads)
    target = check_device(device)
    torch_dtype = check_dtype(dtype, target)
    place, path = locate(spec)
    match place:
        case "tiny":
            model, tokenizer = tiny.build(torch_dtype)
            loaded = LoadedModel("tiny", model, Tokenizer(tokenizer), random_weights=True)
        case "smollm2":
            folder = smollm2.ensure(report)
            report(Progress("loading the model"))
            loaded = _load_pretrained(folder, "SmolLM2-135M", torch_dtype)
        case "gguf":
            report(Progress("unpacking the model"))
            model, tokenizer = load_gguf(path, check_config, torch_dtype)
            loaded = LoadedModel(path.stem, model, Tokenizer(tokenizer, _eos_token_ids(model)))
        case "folder":
            report(Progress("loading the model"))
            loaded = _load_pretrained(path, path.resolve().name, torch_dtype)
        case "hub":
            report(Progress(f"fetching {spec} from the hub"))
            loaded = _load_pretrained(spec, path.name, torch_dtype)
    loaded.model.to(device=target).eval()
    return loaded


def check_device(name: str) -> torch.device:
    """The torch device of that name; ModelError if this machine does not have it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(f"the device {name!r} cannot be used here ({one_line(error)}); try --device cpu.") from None
    return device


def check_dtype(name: str, device: torch.device) -> torch.dtype:
    """The torch dtype of that name; ModelError if the device cannot compute with it."""
    if name == "auto":
        name = "float32" if device.type == "cpu" else "bfloat16"
    if name not in DTYPES:
        raise ModelError(f"there is no dtype {name!r}; use one of {', '.join(DTYPES)}, or auto.")
    try:
        ones = torch.ones(8, 8, dtype=DTYPES[name], device=device)
        torch.softmax(ones @ ones, -1).sum().item()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ModelError(f"{device.type} cannot compute in {name} ({one_line(error)}); try --dtype float32.") from None
    return DTYPES[name]


def check_config(config: PretrainedConfig) -> None:
    """ModelError unless this is a decoder with plain causal attention in every layer."""
    text = config.get_text_config()
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False) or type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        raise ModelError(f"a {kind} model has an encoder; this engine runs decoders only (Llama, Qwen, SmolLM ...).")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"a {kind} model does not generate text; this engine runs causal decoders (Llama, Qwen ...).")
    special = sorted(set(getattr(text, "layer_types", None) or ()) - {"full_attention"})
    if special:
        raise ModelError(f"this {kind} model has {special[0]} layers; this engine pages plain causal attention only.")
    for name, what in (("sliding_window", "a sliding window"), ("attn_logit_softcapping", "soft-capped scores")):
        if getattr(text, name, None):
            raise ModelError(
                f"this {kind} model's attention uses {what} ({name} = {getattr(text, name)}); "
                "this engine pages plain causal attention only."
            )
    rope = getattr(text, "rope_parameters", None) or {}
    by_layer_type = [value for value in rope.values() if isinstance(value, dict)]
    moving = {part.get("rope_type") for part in (rope, *by_layer_type)} & {"dynamic", "longrope"}
    if moving:
        # transformers picks their frequencies by the longest sequence of the batch: a request would depend on others.
        raise ModelError(
            f"this {kind} model's positions depend on how long the text is (rope type {moving.pop()}); "
            "keys that are cached could not be kept."
        )
    if not MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._supports_attention_backend:
        raise ModelError(f"transformers does not let the attention of a {kind} model be replaced; it cannot be paged.")


def _load_pretrained(source: Path | str, name: str, dtype: torch.dtype) -> LoadedModel:
    """Load with transformers, telling apart what can be wrong with a folder and with the hub."""
    config = _guarded(source, lambda: AutoConfig.from_pretrained(source, trust_remote_code=False))
    check_config(config)
    model = _guarded(
        source,
        lambda: AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False
        ),
    )
    tokenizer = _guarded(source, lambda: AutoTokenizer.from_pretrained(source, trust_remote_code=False))
    return LoadedModel(name, model, Tokenizer(tokenizer, _eos_token_ids(model)))


def _guarded(source: Path | str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # whatever transformers, the hub client or a parser throws at a broken model
        local = isinstance(source, Path)
        reason = one_line(error)
        if local:
            raise ModelError(f"the model in {source} cannot be loaded: {reason}") from error
        if os.environ.get("HF_HUB_OFFLINE") or "connect" in reason.lower() or "offline" in reason.lower():
            raise ModelError(
                f"{source} is not in the local cache and the hub cannot be reached; "
                "use a folder, a .gguf file, or --model tiny."
            ) from error
        raise ModelError(f"{source} cannot be loaded from the hub: {reason}") from error


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    eos = model.generation_config.eos_token_id if model.generation_config is not None else None
    if eos is None:
        eos = model.config.get_text_config().eos_token_id
    return () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
