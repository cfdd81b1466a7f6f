"""The partitions cover every weight of a model, and no quantization group is cut."""

import pytest
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.partition.partition import Partition, Segments
from tinyllm_qwen.partition.split import Split
from tinyllm_qwen.testing.hybrid import SHAPES, hybrid_config

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


# Four key heads of 32 features with two value heads each, and a shared expert of 64 features.
HYBRID = dict(SHAPES["tiny-moe"]) | {"linear_num_key_heads": 4, "linear_num_value_heads": 8}


def parts_of(size: int, group: int = 0, **fields: object) -> tuple[QwenConfig, list[Partition]]:
    return divided(QwenConfig.from_hf(MOE | fields), size, group)


def hybrid_parts_of(
    size: int, group: int = 0, **fields: int | bool | str
) -> tuple[QwenConfig, list[Partition]]:
    return divided(QwenConfig.from_hf(hybrid_config(HYBRID | fields)), size, group)


def divided(config: QwenConfig, size: int, group: int) -> tuple[QwenConfig, list[Partition]]:
    formats = {
        name.removesuffix(".weight"): PackedFormat(group_size=group, bits=4)
        for name, shape in expected_shapes(config).items()
        if group and len(shape) > 1
    }
    return config, [Partition.of(config, formats, rank, size) for rank in range(size)]


@pytest.mark.parametrize(
    ("size", "family"),
    [
        *((size, "qwen3_moe") for size in (1, 2, 3, 4, 5, 8, 10)),
        *((size, family) for size in (1, 2, 3, 4) for family in ("qwen3_5_moe", "qwen3_next")),
    ],
)
def test_the_parts_of_a_tensor_cover_it(size: int, family: str) -> None:
    is_hybrid = family != "qwen3_moe"
    config, parts = hybrid_parts_of(size, model_type=family) if is_hybrid else parts_of(size)
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


def test_heads_features_experts_and_vocabulary_are_divided() -> None:
    _, parts = parts_of(3)
    assert [len(part.kv_heads) for part in parts] == [2, 1, 1]
    assert [len(part.heads) for part in parts] == [6, 3, 3]
    assert [len(part.mlp) for part in parts] == [214, 213, 213]
    assert [len(part.experts or ()) for part in parts] == [4, 3, 3]
    assert [part.vocabulary for part in parts] == [range(53), range(53, 106), range(106, 157)]


def test_value_heads_stay_with_their_key_head() -> None:
    config, parts = hybrid_parts_of(3)
    assert [part.key_heads for part in parts] == [range(2), range(2, 3), range(3, 4)]
    assert [part.value_heads for part in parts] == [range(4), range(4, 6), range(6, 8)]
    assert config.recurrent is not None
    local = [part.local_recurrent(config.recurrent) for part in parts]
    assert [sizes.channels for sizes in local] == [256, 128, 128]
    assert [len(part.shared_expert) for part in parts] == [22, 21, 21]
    one = parts[1]
    name = "layers.0.linear_attn"
    for tensor in ("in_proj_qkv.weight", "conv1d.weight"):
        rows, *_ = one.slices(f"{name}.{tensor}", (512, 128, 1), config) or ()
        assert isinstance(rows, Segments)
        assert rows.ranges == (range(64, 96), range(192, 224), range(384, 448))
    for tensor in ("A_log", "dt_bias", "in_proj_b.weight", "in_proj_a.weight"):
        assert (one.slices(f"{name}.{tensor}", (8, 128), config) or ())[0] == range(4, 6)
    assert one.slices(f"{name}.norm.weight", (32,), config) == (range(32),)
    assert (one.slices(f"{name}.in_proj_z.weight", (256, 128), config) or ())[0] == range(128, 192)
    columns = one.slices(f"{name}.out_proj.weight", (128, 256), config)
    assert columns == (range(128), range(128, 192))


def test_joint_projections_are_divided_by_key_heads() -> None:
    config, parts = hybrid_parts_of(2, model_type="qwen3_next")
    name = "layers.0.linear_attn.in_proj"
    for rank, part in enumerate(parts):
        rows, _ = part.slices(f"{name}_qkvz.weight", (768, 128), config) or ()
        assert rows == range(384 * rank, 384 * rank + 384)  # two heads of 32 + 32 + 64 + 64 rows
        rows, _ = part.slices(f"{name}_ba.weight", (16, 128), config) or ()
        assert rows == range(8 * rank, 8 * rank + 8)


def test_output_gates_stay_with_their_heads() -> None:
    config, parts = hybrid_parts_of(2)
    for rank, part in enumerate(parts):
        rows, _ = part.slices("layers.3.self_attn.q_proj.weight", (512, 128), config) or ()
        assert rows == range(256 * rank, 256 * rank + 256)  # two heads of 64 + 64 rows


def test_groups_of_recurrent_layers_stay_whole() -> None:
    # Two key heads have 128 columns of out_proj.
    config, parts = hybrid_parts_of(2, 128, shared_expert_intermediate_size=256)
    assert [part.key_heads for part in parts] == [range(2), range(2, 4)]
    for part in parts:
        name = "layers.0.linear_attn.out_proj"
        _, words = part.slices(f"{name}.weight", (128, 32), config) or ()
        _, groups = part.slices(f"{name}.scales", (128, 2), config) or ()
        assert (len(words), len(groups)) == (16, 1)


@pytest.mark.parametrize(
    ("size", "group", "fields", "message"),
    [
        (5, 0, {}, "4 key heads of recurrent layers cannot be divided among 5 ranks: use fewer"),
        (3, 128, {}, "4 key heads of recurrent layers in units of 2, because quantized groups"),
        (
            *(2, 32, {"shared_expert_intermediate_size": 32}),
            "32 columns of the shared expert in units of 32",
        ),
    ],
)
def test_recurrent_layers_for_too_many_ranks_are_refused(
    size: int, group: int, fields: dict[str, int | bool], message: str
) -> None:
    wide = {"num_attention_heads": 8, "num_key_value_heads": 8}
    with pytest.raises(ValueError, match=message):
        hybrid_parts_of(size, group, **(wide | fields))


def test_rank_0_has_a_recurrent_layer() -> None:
    document = hybrid_config(HYBRID)
    text = document["text_config"]
    assert isinstance(text, dict)
    text["layer_types"] = ["full_attention", *text["layer_types"][1:]]
    config = QwenConfig.from_hf(document)
    with pytest.raises(
        ValueError, match=r"recurrent layer on rank 0, got the attention layers \[0"
    ):
        Partition.stage(config, 0, 2, (1, 7))
    assert Partition.stage(config, 0, 2, (2, 6)).layers == range(2)


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


def test_an_unused_size_of_an_mlp_refuses_no_ranks() -> None:
    _, parts = parts_of(2, intermediate_size=1, decoder_sparse_step=1)
    assert [len(part.experts or ()) for part in parts] == [5, 5]


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
    heads = {(len(part.heads), len(part.kv_heads)) for part in parts}
    assert heads == {(config.num_attention_heads, config.num_key_value_heads)}
    assert {len(part.mlp) for part in parts} == {config.intermediate_size}
    assert {len(part.shared_expert) for part in parts} == {config.experts.shared_size}
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
