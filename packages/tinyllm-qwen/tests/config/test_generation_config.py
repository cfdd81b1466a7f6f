"""GenerationConfig checks types and ranges, and its defaults filter no token."""

import json
from pathlib import Path

import pytest
from tinyllm_qwen.config.generation import GenerationConfig
from tinyllm_qwen.errors import CheckpointError


def read(folder: Path, **fields: object) -> GenerationConfig:
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return GenerationConfig.from_folder(folder)


def test_every_field_of_a_published_file_is_read(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        bos_token_id=151643,
        do_sample=True,
        eos_token_id=[151645, 151643],
        max_new_tokens=2048,
        min_p=0.05,
        pad_token_id=151643,
        repetition_penalty=1.05,
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        transformers_version="4.51.0",
    )
    assert config == GenerationConfig(
        do_sample=True,
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.05,
    )


def test_an_absent_file_gives_the_defaults(tmp_path: Path) -> None:
    assert GenerationConfig.from_folder(tmp_path) == GenerationConfig()


def test_an_absent_or_null_field_has_its_default(tmp_path: Path) -> None:
    assert read(tmp_path, top_k=None, temperature=None) == GenerationConfig()


def test_a_whole_number_is_a_number(tmp_path: Path) -> None:
    assert read(tmp_path, temperature=1).temperature == 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("do_sample", 1),
        ("temperature", "0.7"),
        ("temperature", -0.1),
        ("temperature", True),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 10**400),
        ("top_k", 2.0),
        ("top_k", -1),
        ("top_p", 1.01),
        ("min_p", [0.1]),
        ("repetition_penalty", 0),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {name}: expected"):
        read(tmp_path, **{name: value})


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_a_broken_file_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "generation_config.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        GenerationConfig.from_folder(tmp_path)


def test_arguments_win_over_the_defaults() -> None:
    advice = GenerationConfig(do_sample=True, temperature=0.6, top_k=20, min_p=0.1)
    params = advice.sampling(temperature=0.0, top_p=0.5)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.0, 20, 0.5, 0.1)
    assert GenerationConfig(temperature=0.6).sampling().is_greedy


def test_overrides_replace_fields_of_the_file(tmp_path: Path) -> None:
    def read(**overrides: object) -> GenerationConfig:
        return GenerationConfig.from_folder(tmp_path, overrides)

    assert read() == GenerationConfig()
    assert read(temperature=0.5) == GenerationConfig(do_sample=True, temperature=0.5)
    assert read(temperature=0.5, do_sample=False).sampling().temperature == 0.0
    assert read(repetition_penalty=1.1) == GenerationConfig(repetition_penalty=1.1)
    (tmp_path / "generation_config.json").write_text('{"top_k": 20, "min_p": 0.1}')
    assert read(top_k=9) == GenerationConfig(do_sample=True, top_k=9, min_p=0.1)
    with pytest.raises(CheckpointError, match="top_p"):
        read(top_p=2)
