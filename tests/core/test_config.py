from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchsvdd.core.config import Config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.image_size import parse_image_size
from patchsvdd.core.memory_size import parse_memory_size
from patchsvdd.core.presets import PRESETS, preset, with_critic_steps
from patchsvdd.core.scales import Scale, parse_scales


class TestPresets:
    def test_best_is_the_default(self) -> None:
        assert preset() == preset("best") == PRESETS["best"]

    def test_names_are_their_own(self) -> None:
        assert [config.preset for config in PRESETS.values()] == list(PRESETS) == ["paper", "encoder", "best"]

    def test_paper_is_the_paper_to_the_letter(self) -> None:
        paper = preset("paper")
        assert paper.image_size == (256, 256)
        assert paper.resize == "nearest"
        assert (paper.centering, paper.standardize) == ("pixel", False)
        assert paper.scales == (Scale(32, 4), Scale(64, 16))
        assert paper.embedding_dim == 64
        assert (paper.objective, paper.sampling, paper.schedule) == ("patch-svdd", "patches", "constant")
        assert (paper.batch_size, paper.epochs, paper.learning_rate, paper.lambda_) == (64, 300, 1e-4, 1e-3)
        assert (paper.rgb_shift, paper.noise, paper.photometric) == (0.02, 0.02, 0.0)
        assert paper.frozen_position_output
        assert (paper.lamp, paper.local_scaling, paper.retries) == (0.0, False, 0)

    @pytest.mark.parametrize("name", ["encoder", "best"])
    def test_the_image_size_is_chosen_from_the_images(self, name: str) -> None:
        config = preset(name)
        assert config.auto_size
        assert (config.image_size, config.fit, config.pixel_scale) == ((256, 256), "letterbox", None)
        assert config == preset(name, image_size="auto")

    def test_the_papers_images_are_256_pixels_wide_and_high(self) -> None:
        config = preset("paper")
        assert (config.image_size, config.fit, config.auto_size) == ((256, 256), "stretch", False)
        assert config == preset("paper", image_size=256)

    def test_a_size_that_is_given_stretches(self) -> None:
        config = preset("best", image_size=256)
        assert (config.image_size, config.fit, config.auto_size) == ((256, 256), "stretch", False)
        assert preset("best", image_size=256, fit="letterbox", pixel_scale=0.5).pixel_scale == 0.5

    @pytest.mark.parametrize("changes", [{"fit": "stretch"}, {"pixel_scale": 0.5}])
    def test_settings_of_a_size_need_one(self, changes: dict[str, Any]) -> None:
        for size in (None, "auto"):
            with pytest.raises(ConfigError, match="to set them, give an `image_size`"):
                preset("best", image_size=size, **changes)

    def test_bottle_takes_97800_steps(self) -> None:
        assert preset("paper").total_steps(209) == 97_800

    def test_unknown_name(self) -> None:
        with pytest.raises(ConfigError, match="no preset 'fast'; choose one of: paper, encoder"):
            preset("fast")


class TestSteps:
    def test_steps_replace_epochs_and_the_reverse(self) -> None:
        assert preset("paper", steps=7).total_steps(100) == 7
        assert preset("encoder", epochs=2, batch_size=10).total_steps(3) == 60

    def test_both_at_once_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="`steps` and `epochs`"):
            preset("paper", steps=7, epochs=1)

    def test_fewer_samples_than_a_batch_are_still_a_step(self) -> None:
        assert preset("paper", epochs=3, batch_size=1000).total_steps(2) == 3

    @pytest.mark.parametrize("kind", ["random", "raw"])
    def test_what_does_not_learn_takes_no_step(self, kind: str) -> None:
        assert preset("paper", encoder=kind).total_steps(209) == 0


class TestChecks:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"resize": "lanczos"}, "`resize` must be one of nearest, area, bicubic; got 'lanczos'"),
            ({"centering": "median"}, "`centering` must be one of"),
            ({"warmup": -1}, "`warmup` must be at least 0"),
            ({"clip": -1.0}, "`clip` must be at least 0"),
            ({"ema": 1.0}, "`ema` must be a fraction"),
            ({"lamp": -1.0}, "`lamp` must be at least 0"),
            ({"retries": -1}, "`retries` must be at least 0"),
            ({"encoder": "resnet"}, "`encoder` must be one of hierarchical, flat, random, raw"),
            ({"objective": "patch"}, "`objective"),
            ({"sampling": "sparse"}, "`sampling"),
            ({"stop": "never"}, "`stop` must be one of"),
            ({"schedule": "linear"}, "`schedule` must be one of"),
            ({"scales": ()}, "`scales"),
            ({"scales": (Scale(64, 16),)}, "`scales` of a hierarchical encoder must double from 32: 32; got 64"),
            ({"scales": (Scale(64, 16), Scale(32, 4))}, "`scales"),
            ({"scales": (Scale(32, 4), Scale(128, 16))}, "`scales"),
            ({"scales": (Scale(32, 3), Scale(64, 16))}, "`scales`: the stride of 32-px patches must be even"),
            ({"scales": (Scale(32, 0), Scale(64, 16))}, "`scales"),
            ({"scales": (Scale(32, 34), Scale(64, 16))}, "`scales"),
            ({"encoder": "flat"}, "`scales=64:16`"),
            ({"encoder": "flat", "scales": (Scale(64, 4),)}, "`scales"),
            ({"image_size": 63}, "`image_size=63x63` is smaller than the largest patch"),
            ({"image_size": "300x32"}, "`image_size=300x32`"),
            ({"image_size": "0"}, "`image_size"),
            ({"image_size": "big"}, "`image_size` must be auto, 256, 336x448"),
            ({"image_size": "-5"}, "`image_size"),
            ({"image_size": "1x2x3"}, "`image_size"),
            ({"image_size": "100x"}, "`image_size"),
            ({"image_size": "²56"}, "`image_size"),
            ({"image_size": (64, 64, 3)}, "`image_size"),
            ({"steps": -1}, "`steps` must be at least 0; got -1"),
            ({"epochs": 0}, "`epochs"),
            ({"batch_size": 0}, "`batch_size"),
            ({"crop_size": 32}, "`crop_size` must be at least the largest patch"),
            ({"crop_size": 0}, "`crop_size` must be at least the largest patch"),
            ({"pairs_per_crop": 0}, "pairs_per_crop"),
            ({"embedding_dim": 0}, "`embedding_dim"),
            ({"learning_rate": 0.0}, "`learning_rate` must be above 0"),
            ({"learning_rate": float("nan")}, "`learning_rate"),
            ({"learning_rate": float("inf")}, "`learning_rate"),
            ({"lambda_": -0.1}, "`lambda_` must be at least 0"),
            ({"lambda_": float("nan")}, "`lambda"),
            ({"lambda_": float("inf")}, "`lambda"),
            ({"rgb_shift": -1.0}, "rgb_shift"),
            ({"noise": -1.0}, "`noise` must be"),
            ({"photometric": -1.0}, "`photometric"),
            ({"seed": -1}, "`seed"),
            ({"seed": 2**63}, "`seed"),
            ({"false_alarm_rate": 0.0}, "`false_alarm_rate` must be between 0 and 1"),
            ({"false_alarm_rate": 1.0}, "`false_alarm_rate"),
            ({"false_alarm_rate": 5}, "`false_alarm_rate"),
            ({"memory": "0%"}, "`memory` must be a share above 0% and up to 100%; got '0%'"),
            ({"memory": "100.5%"}, "`memory` must be a share above 0% and up to 100%"),
            ({"memory": "0"}, "`memory=0` would keep no patch"),
            (
                {"memory": "abc"},
                "`memory` must be a share like 10% or a number of patches per scale like 5000; got 'abc'",
            ),
            ({"memory": "-5"}, "`memory"),
            ({"memory": "2.5"}, "`memory"),
            ({"memory": ""}, "`memory"),
            ({"memory": "nan%"}, "`memory"),
            ({"fusion_share": -0.1}, "`fusion_share` must be between 0 (critic) and 1 (memory); got -0.1"),
            ({"fusion_share": 1.5}, "`fusion_share"),
            ({"minutes": 0.0}, "`minutes` must be above 0; got 0.0"),
            ({"minutes": float("inf")}, "`minutes"),
            ({"critic": CriticSettings(width=1)}, "the critic's width must be a whole number of at least 2; got 1"),
            ({"critic": CriticSettings(steps=0)}, "the critic's steps"),
            ({"critic": CriticSettings(steps=1.5)}, "the critic's steps"),  # type: ignore[arg-type]
            ({"critic": CriticSettings(batch_size=0)}, "the critic's batch_size"),
            ({"critic": CriticSettings(warmup=0)}, "the critic's warmup"),
            ({"critic": CriticSettings(share=1.1)}, "the critic's share must be between 0 and 1; got 1.1"),
            ({"critic": CriticSettings(photometric=-1)}, "the critic's photometric"),
            ({"critic": CriticSettings(turn=7)}, "the critic's turn"),
            ({"critic": CriticSettings(ema=1)}, "the critic's ema"),
            ({"critic": CriticSettings(learning_rate=0)}, "the critic's learning_rate must be above 0; got 0"),
            ({"critic": {"steps": 3}}, "`critic` must be CriticSettings(steps=…, width=…); got {'steps': 3}"),
        ],
        ids=str,
    )
    def test_a_setting_that_cannot_work_names_itself(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError) as error:
            preset("encoder", **changes)
        assert words in str(error.value)
        assert words.startswith("--") or "--" not in str(error.value)  # what no command has an option for

    def test_unknown_settings_are_named(self) -> None:
        with pytest.raises(ConfigError, match=r"unknown setting 'stepz'; known settings: .*steps"):
            preset("encoder", stepz=3)

    def test_a_third_scale_is_allowed(self) -> None:
        scales = parse_scales("32:4,64:16,128:32")
        assert preset("paper", scales=scales).scales == (Scale(32, 4), Scale(64, 16), Scale(128, 32))

    def test_a_native_size_needs_no_size(self) -> None:
        assert preset("paper", image_size="native").image_size is None


class TestCritic:
    def test_the_presets_that_have_one(self) -> None:
        assert [name for name, config in PRESETS.items() if config.critic is not None] == ["best"]
        assert preset("best", preset="encoder").critic == CriticSettings()

    def test_its_steps(self) -> None:
        critic = with_critic_steps(preset("best"), 7).critic
        assert critic == CriticSettings(steps=7)
        assert with_critic_steps(preset("paper"), None) == preset("paper")
        with pytest.raises(ConfigError, match="`critic_steps`: preset 'paper' has no critic; use `preset=best`"):
            with_critic_steps(preset("paper"), 7)

    def test_settings_of_a_newer_version_are_named(self) -> None:
        data = preset("best").to_json()
        data["critic"]["depth"] = 3
        with pytest.raises(ConfigError, match="settings of the critic do not fit this version: depth"):
            Config.from_json(data)

    def test_settings_that_were_not_there_yet_have_their_default(self) -> None:
        data = preset("best", critic=CriticSettings(steps=5)).to_json()
        del data["critic"]["turn"]
        assert Config.from_json(data).critic == CriticSettings(steps=5)

    def test_models_trained_before_sizes_were_chosen_keep_theirs(self) -> None:
        data = preset("best", image_size=128).to_json()
        for name in ("fit", "pixel_scale", "auto_size", "smallest_defect"):
            del data[name]
        config = Config.from_json(data)
        assert config == preset("best", image_size=128)
        assert config.placement((300, 600)).is_whole


class TestReplace:
    def test_none_leaves_a_setting_as_it_is(self) -> None:
        assert preset("paper", steps=None, image_size=None, seed=None) == preset("paper")

    def test_the_original_is_untouched(self) -> None:
        preset("paper", seed=5)
        assert preset("paper").seed == 0


class TestParsing:
    @pytest.mark.parametrize(
        ("text", "size"),
        [
            (256, (256, 256)),
            ("256", (256, 256)),
            ("336x448", (448, 336)),
            ("336X448", (448, 336)),
            ("336×448", (448, 336)),
            ("336 x 448", (448, 336)),
            ((448, 336), (448, 336)),
            ([448, 336], (448, 336)),
            ("native", None),
        ],
    )
    def test_image_sizes(self, text: Any, size: tuple[int, int] | None) -> None:
        assert parse_image_size(text) == size

    @given(st.text(alphabet="0123456789xX× ²٣-.", max_size=8))
    def test_any_text_is_a_size_or_an_error_that_names_the_setting(self, text: str) -> None:
        try:
            size = parse_image_size(text)
        except ConfigError as error:
            assert "`image_size`" in str(error)  # noqa: PT017
        else:
            assert size is None or len(size) == 2

    @given(st.one_of(st.integers(1, 10**9).map(str), st.floats(0.001, 100).map(lambda share: f"{share:.4f}%")))
    def test_a_memory_size_says_itself(self, text: str) -> None:
        size = parse_memory_size(text)
        assert parse_memory_size(str(size)) == size
        assert size.is_whole == (text == "100.0000%")

    @given(st.floats(0.001, 100), st.integers(1, 10**7))
    def test_a_share_keeps_at_least_one_patch_and_at_most_all(self, share: float, total: int) -> None:
        rows = parse_memory_size(f"{share:.6f}%").rows_of(total)
        assert 1 <= rows <= total
        assert abs(rows - total * share / 100) <= 1 + total * 1e-8

    @given(st.text(alphabet="0123456789.% eE+-٣²", max_size=8))
    def test_any_text_is_a_memory_size_or_an_error_that_names_the_setting(self, text: str) -> None:
        try:
            size = parse_memory_size(text)
        except ConfigError as error:
            assert "`memory" in str(error)  # noqa: PT017
        else:
            assert 1 <= size.rows_of(1000) <= 1000

    @pytest.mark.parametrize("text", ["", "32", "32:4:2", "a:b", "32:4,", "32:4;64:16"])
    def test_odd_scales(self, text: str) -> None:
        with pytest.raises(ConfigError, match="`scales` must be"):
            parse_scales(text)


class TestJson:
    @given(
        name=st.sampled_from(sorted(PRESETS)),
        size=st.one_of(st.just("native"), st.integers(64, 500), st.tuples(st.integers(64, 500), st.integers(64, 500))),
        rate=st.floats(1e-6, 0.5),
        lambda_=st.floats(0, 10),
        seed=st.integers(0, 2**63 - 1),
    )
    def test_round_trip(self, name: str, size: Any, rate: float, lambda_: float, seed: int) -> None:
        config = preset(name, image_size=size, learning_rate=rate, lambda_=lambda_, seed=seed)
        assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config

    def test_unknown_and_missing_fields_are_named(self) -> None:
        data = preset("paper").to_json()
        data["colour"] = data.pop("seed")
        with pytest.raises(ConfigError, match="colour, seed"):
            Config.from_json(data)

    def test_settings_of_version_0_1_kept_every_patch(self) -> None:
        data = preset("paper").to_json()
        later_settings = (
            "svdd_before_tanh",
            "warmup",
            "clip",
            "ema",
            "position_normalization",
            "lamp",
            "local_scaling",
            "critic",
            "fusion_share",
            "minutes",
        )
        for later in ("memory", *later_settings, "retries"):
            del data[later]
        config = Config.from_json(data)
        assert config == preset("paper")
        assert config.memory_size.is_whole

    def test_the_memory_is_kept(self) -> None:
        config = preset("paper", memory="12.5%")
        assert Config.from_json(json.loads(json.dumps(config.to_json()))).memory == "12.5%"
