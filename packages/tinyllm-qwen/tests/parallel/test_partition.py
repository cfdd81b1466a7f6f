"""The partitions cover every weight of a model, and no quantization group is cut."""

import pytest
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.parallel.partition import Partition
from tinyllm_qwen.parallel.split import Split

FIELDS: dict[str, object] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 640,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "vocab_size": 157,
    "head_dim": 64,
}
MOE: dict[str, object] = FIELDS | {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 2,
    "moe_intermediate_size": 32,
    "num_experts": 10,
    "num_experts_per_tok": 2,
}


def parts_of(size: int, group: int = 0, **fields: object) -> tuple[QwenConfig, list[Partition]]:
    config = QwenConfig.from_hf(MOE | fields)
    formats = {
        name.removesuffix(".weight"): PackedFormat(group_size=group, bits=4)
        for name, shape in expected_shapes(config).items()
        if group and len(shape) > 1
    }
    return config, [Partition.of(config, formats, rank, size) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 10])
def test_the_parts_of_a_tensor_cover_it(size: int) -> None:
    config, parts = parts_of(size)
    for name, shape in expected_shapes(config).items():
        covered = [
            {at for part in parts for at in (part.slices(name, shape, config) or ())[axis]}
            for axis in range(len(shape))
        ]
        assert covered == [set(range(size)) for size in shape], name


@pytest.mark.parametrize(
    ("size", "group"), [(2, 32), (5, 32), (2, 64), (3, 64), (4, 64), (5, 64), (2, 128)]
)
def test_groups_stay_whole(size: int, group: int) -> None:
    config, parts = parts_of(size, group)
    for part in parts:
        for name, total in (("self_attn.o_proj", 768), ("mlp.down_proj", 640)):
            path = f"layers.0.{name}"
            _, words = part.slices(f"{path}.weight", (64, total // 8), config) or ()
            _, groups = part.slices(f"{path}.scales", (64, total // group), config) or ()
            assert (words.start * 8, words.stop * 8) == (groups.start * group, groups.stop * group)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 12])
def test_query_heads_stay_with_their_keys(size: int) -> None:
    config, parts = parts_of(size, num_experts=64, vocab_size=999)
    together = 3  # query heads per key/value head
    for part in parts:
        assert len(part.heads) % len(part.kv_heads) == 0
        for at, head in enumerate(part.heads):
            local = at // (len(part.heads) // len(part.kv_heads))
            assert part.kv_heads[local] == head // together
    heads = [head for part in parts for head in part.heads]
    assert heads == list(range(12))
    assert config.num_attention_heads == 12


def test_a_part_is_a_model_of_fewer_heads() -> None:
    config, parts = parts_of(3)
    local = [part.local(config) for part in parts]
    assert [each.num_key_value_heads for each in local] == [2, 1, 1]
    assert [each.num_attention_heads for each in local] == [6, 3, 3]
    assert [each.intermediate_size for each in local] == [214, 213, 213]
    assert {each.head_dim for each in local} == {64}
    assert [len(part.experts or ()) for part in parts] == [4, 3, 3]
    assert [part.vocabulary for part in parts] == [range(53), range(53, 106), range(106, 157)]


def test_a_bias_of_the_sum_is_added_once() -> None:
    config, parts = parts_of(3, attention_bias=True)
    found = [part.slices("layers.0.self_attn.o_proj.bias", (64,), config) for part in parts]
    assert found == [(range(64),), None, None]
    assert parts[1].slices("layers.0.self_attn.q_proj.bias", (768,), config) == (range(384, 576),)


@pytest.mark.parametrize(
    ("size", "group", "fields", "message"),
    [
        (
            13,
            0,
            {"num_experts": 99},
            "3 query heads of one key/value head cannot be .* among 4 ranks",
        ),
        (11, 0, {}, "10 experts cannot be divided among 11 ranks: use fewer"),
        (2, 128, {"intermediate_size": 128}, "128 columns of the MLP in units of 128"),
        (3, 128, {}, "4 key/value heads in units of 2, because quantized groups stay whole"),
        (4, 128, {}, "3 query heads of one key/value head in units of 2"),
        (4, 0, {"vocab_size": 6}, "6 tokens of the vocabulary cannot be divided among 4"),
    ],
)
def test_too_many_ranks_are_refused(
    size: int, group: int, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        parts_of(size, group, **fields)


@pytest.mark.parametrize(
    ("size", "layers", "starts"),
    [(1, (), [0, 7]), (3, (), [0, 3, 5, 7]), (7, (), [*range(8)]), (3, (1, 4, 2), [0, 1, 5, 7])],
)
def test_each_layer_is_whole_and_in_one_stage(
    size: int, layers: tuple[int, ...], starts: list[int]
) -> None:
    config = QwenConfig.from_hf(MOE | {"num_hidden_layers": 7, "attention_bias": True})
    parts = [Partition.stage(config, rank, size, layers) for rank in range(size)]
    assert [part.layers for part in parts] == list(map(range, starts[:-1], starts[1:]))
    assert {part.local(config) for part in parts} == {config}
    for name, shape in expected_shapes(config).items():
        held = [part.slices(name, shape, config) for part in parts]
        whole = tuple(map(range, shape))
        if name.startswith("layers."):
            (layer,) = [rank for rank, part in enumerate(held) if part is not None]
            assert held[layer] == whole
            assert int(name.split(".")[1]) in (parts[layer].layers or ())
        elif name == "norm.weight":
            assert held == [whole] * size
        else:  # stages too divide the vocabulary by tokens
            assert [(part or whole)[0] for part in held] == [each.vocabulary for each in parts]


@pytest.mark.parametrize("layers", [(1, 1), (3, 3, 2), (7, 0, 0), (8, -1, 0)])
def test_layers_that_do_not_add_up_are_refused(layers: tuple[int, ...]) -> None:
    config = QwenConfig.from_hf(MOE | {"num_hidden_layers": 7})
    with pytest.raises(ValueError, match="a number of layers for each of 3 ranks, "):
        Partition.stage(config, 0, 3, layers)


def test_more_ranks_than_layers_are_refused() -> None:
    config = QwenConfig.from_hf(MOE)
    with pytest.raises(ValueError, match="2 layers cannot be divided among 3 ranks: use fewer"):
        Partition.stage(config, 0, 3)


def test_parsing_a_split() -> None:
    assert Split.parse("heads") == Split()
    assert Split.parse("layers") == Split(by_layers=True)
    assert Split.parse("20,8") == Split(by_layers=True, layers=(20, 8))
    for text in ("heads", "layers", "20,8"):
        assert str(Split.parse(text)) == text
    for wrong in ("", "28", "20,", "20,-8", "rows", "1,5.5"):
        with pytest.raises(ValueError, match="--split: expected heads, layers or the number"):
            Split.parse(wrong)
