"""Variants: one scene of a preset with other parameters, on the same requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.preset import Preset
from app.preset_files import PresetError
from app.protocol import AddRequest, Reconfigure
from app.variants import variants
from engine.config import ConfigError
from tests.app.preset_support import INJECT, preset_of

SCENES = (
    "[parameters]\nmax_num_seqs = 3\n"
    '[[scene]]\nname = "a"\n'
    '[[scene]]\nname = "b"\nparameters = { max_num_batched_tokens = 64 }\n'
    "[[scene.script]]\nstep = 2\nset = { watermark = 0.5, max_num_seqs = 1 }\n"
)


@pytest.fixture
def preset(tmp_path: Path) -> Preset:
    return preset_of(tmp_path, middle=SCENES, inject=INJECT.replace("tokens = 5", "tokens = [5, 50], count = 4"))


def test_without_values_all_scenes_are_compared_or_the_one_that_is_named(preset: Preset) -> None:
    assert [part.name for part in variants(preset, None, [], {})] == ["a", "b"]
    (part,) = variants(preset, "b", [], {"max_num_seqs": 7})
    assert part.name == "b" and part.config.max_num_seqs == 7 and part.config.max_num_batched_tokens == 64


def test_each_value_is_a_variant_of_the_first_scene_on_the_same_requests(preset: Preset) -> None:
    made = variants(preset, None, ["max-num-batched-tokens = 32, 256,32"], {})
    assert [(part.name, part.config.max_num_batched_tokens) for part in made] == [("32", 32), ("256", 256)]
    assert {part.config.max_num_seqs for part in made} == {3}
    assert made[0].cues == made[1].cues == variants(preset, "a", [], {})[0].cues
    assert len([cue for cue in made[0].cues if isinstance(cue.command, AddRequest)]) == 4


def test_several_parameters_are_combined(preset: Preset) -> None:
    made = variants(preset, "b", ["num_blocks=100,200", "enable_prefix_caching=on,off"], {"max_num_seqs": 5})
    found = [(p.name, p.config.num_blocks, p.config.enable_prefix_caching, p.config.max_num_seqs) for p in made]
    assert found == [
        ("100 on", 100, True, 5),
        ("100 off", 100, False, 5),
        ("200 on", 200, True, 5),
        ("200 off", 200, False, 5),
    ]
    assert {p.config.max_num_batched_tokens for p in made} == {64}, "what the scene has, it keeps"


def test_a_value_that_is_compared_holds_against_flags_scene_and_script(preset: Preset) -> None:
    made = variants(preset, "b", ["max_num_seqs=2,4"], {"max_num_seqs": 9})
    assert [part.config.max_num_seqs for part in made] == [2, 4]
    for part in made:
        assert [c.command for c in part.cues if isinstance(c.command, Reconfigure)] == [Reconfigure({"watermark": 0.5})]


def test_what_is_fixed_while_an_engine_runs_can_be_compared(preset: Preset) -> None:
    assert [part.config.block_size for part in variants(preset, None, ["block_size=16,32"], {})] == [16, 32]


@pytest.mark.parametrize(
    ("scene", "settings", "words"),
    [
        ("c", (), ("'c'", "a, b")),
        (None, ("max_num_seqs",), ("NAME=VALUE", "'max_num_seqs'")),
        (None, ("seats=1,2",), ("'seats'", "max_num_seqs")),
        (None, ("speed=1,2",), ("'speed'",)),
        (None, ("max_num_seqs=1,many",), ("many",)),
        (None, ("max_num_seqs=",), ("max_num_seqs",)),
        (None, ("max_num_seqs=1,0",), ("max_num_seqs is 0",)),
        (None, ("policy=fcfs,lifo",), ("lifo",)),
        (None, ("policy=orca",), ("orca", "1024")),
        (None, ("enable_prefix_caching=on,perhaps",), ("perhaps",)),
        (None, ("max_num_seqs=1", "max_num_seqs=2"), ("max_num_seqs", "twice")),
        (None, (f"max_num_seqs={','.join(map(str, range(1, 102)))}",), ("101", "100")),
    ],
)
def test_what_cannot_be_meant_is_told(
    preset: Preset, scene: str | None, settings: tuple[str, ...], words: tuple[str, ...]
) -> None:
    with pytest.raises((PresetError, ConfigError)) as caught:
        variants(preset, scene, settings, {})
    for word in words:
        assert word in str(caught.value)


def test_no_two_variants_have_one_name(preset: Preset) -> None:
    made = variants(preset, None, ["watermark=0.1,0.1000001", "max_num_seqs=1,2"], {})
    assert len({part.name for part in made}) == 4 and made[0].name == "0.1 1"
