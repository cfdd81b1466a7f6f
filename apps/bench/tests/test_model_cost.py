"""Costs of models, against numbers worked out by hand from the published shapes."""

import pytest
from tinyllm_bench.cases.qwen_runner import QwenRunner
from tinyllm_bench.cases.whole_model import decode_comparison
from tinyllm_bench.ceilings import Ceilings
from tinyllm_bench.cost import (
    Cost,
    ModelCosts,
    attention_flops,
    causal_pairs,
    product_flops,
)
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.models.weight_format import WeightFormat
from tinyllm_bench.settings import Settings
from tinyllm_bench.shapes import published_config
from tinyllm_ops import MLX
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.schema import expected_shapes


def sizes(config: QwenConfig, weight_format: WeightFormat) -> dict[str, int]:
    return {name: weight_format.nbytes(shape) for name, shape in expected_shapes(config).items()}


@pytest.fixture
def config() -> QwenConfig:
    return QwenConfig.from_hf(published_config("qwen3-0.6b"))


# The matrices of a block: q 2048 x 1024, k and v 1024 x 1024, o 1024 x 2048, three of 3072 x 1024.
BLOCK = 2 * 2048 * 1024 + 2 * 1024 * 1024 + 3 * 3072 * 1024
HEAD = 151936 * 1024
NORMS = 28 * (2 * 1024 + 2 * 128) + 1024


@pytest.mark.parametrize("context", [0, 1, 512])
def test_a_token_reads_all_weights_and_all_keys(config: QwenConfig, context: int) -> None:
    weight_format = WeightFormat.choose(4, 64, "affine", "bfloat16", prefers_16_bits=False)
    cost = ModelCosts(config, sizes(config, weight_format), 2).decode(context)
    # Four bits a number, and of every 64 numbers two more of 16 bits.
    matrices = (28 * BLOCK + HEAD) * 36 // 64
    keys_and_values = 28 * 2 * 8 * 128 * 2 * context
    assert cost.bytes == matrices + 2 * NORMS + keys_and_values
    assert cost.flops == 2 * (28 * BLOCK + HEAD) + 28 * 4 * 16 * 128 * context


def test_bytes_of_a_token_limit_its_speed(config: QwenConfig) -> None:
    weight_format = WeightFormat.choose(4, 64, "affine", "bfloat16", prefers_16_bits=False)
    empty, long = (
        ModelCosts(config, sizes(config, weight_format), 2).decode(keys) for keys in (0, 512)
    )
    assert round(empty.bytes / 1e6) == 335
    assert 33e9 / empty.bytes == pytest.approx(98.4, abs=0.1)  # tokens/s at 33 GB/s
    assert 33e9 / long.bytes == pytest.approx(83.7, abs=0.1)


def test_a_prompt_reads_weights_once_and_computes_the_head_once(config: QwenConfig) -> None:
    weight_format = WeightFormat.choose(16, 64, "affine", "auto", prefers_16_bits=False)
    cost = ModelCosts(config, sizes(config, weight_format), 2).prefill(10)
    assert cost.bytes == 2 * (28 * BLOCK + HEAD + NORMS) + 28 * 2 * 8 * 128 * 2 * 10
    pairs = 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10
    assert cost.flops == 2 * (28 * BLOCK * 10 + HEAD) + 28 * 4 * 16 * 128 * pairs


def test_an_embedding_that_is_not_the_head_is_read_by_row() -> None:
    hf = published_config("qwen3-0.6b") | {"tie_word_embeddings": False}
    config = QwenConfig.from_hf(hf)
    weight_format = WeightFormat.choose(16, 64, "affine", "auto", prefers_16_bits=False)
    cost = ModelCosts(config, sizes(config, weight_format), 2).decode(0)
    assert cost.bytes == 2 * (28 * BLOCK + HEAD + NORMS + 1024)


def test_only_chosen_experts_are_read() -> None:
    hf = published_config("qwen3-0.6b") | {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 1,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    config = QwenConfig.from_hf(hf)
    weight_format = WeightFormat.choose(16, 64, "affine", "auto", prefers_16_bits=False)
    attention = 2 * 2048 * 1024 + 2 * 1024 * 1024
    expert, router, norms = 3 * 64 * 1024, 8 * 1024, 2 * 1024 + 2 * 128 + 1024
    one = ModelCosts(config, sizes(config, weight_format), 2).decode(0)
    assert one.bytes == 2 * (attention + 2 * expert + router + norms + HEAD)
    assert one.flops == 2 * (attention + 2 * expert + router + HEAD)
    many = ModelCosts(config, sizes(config, weight_format), 0).prefill(100)
    assert many.bytes == 2 * (attention + 8 * expert + router + norms + HEAD)


def test_a_sliding_window_limits_the_keys() -> None:
    hf = published_config("qwen2.5-0.5b") | {
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 20,
    }
    config = QwenConfig.from_hf(hf)
    cost = ModelCosts(config, {}, 2).decode(100)
    assert cost.bytes == (20 * 100 + 4 * 16) * 2 * 2 * 64 * 2
    cost = ModelCosts(config, {}, 2, kv_bits=8).decode(100)
    assert cost.bytes == (20 * 100 * (64 + 2 * 2) + 4 * 16 * 64 * 2) * 2 * 2


def test_quantized_keys_have_a_scale_and_a_bias_for_each_group() -> None:
    config = QwenConfig.from_hf(published_config("qwen3-0.6b"))
    cost = ModelCosts(config, {}, 2, kv_bits=4).decode(100)
    assert cost.bytes == 28 * 100 * 2 * 8 * (128 // 2 + 2 * 2 * 2)


def test_products_and_attention_by_hand() -> None:
    assert product_flops(2, 3, 5) == 60
    assert causal_pairs(3, 5) == 3 + 4 + 5
    assert attention_flops(2, 4, 10) == 320


def test_the_limit_is_the_slower_of_reading_and_computing() -> None:
    ceilings = Ceilings(10.0, 2.0, "", "")
    reading, computing = Cost(20_000_000_000, 1), Cost(1, 6_000_000_000_000)
    assert (ceilings.limit(reading), ceilings.limit(computing)) == (2.0, 3.0)
    assert ceilings.share_of_read(reading, 4.0) == 0.5
    assert ceilings.share_of_compute(computing, 6.0) == 0.5
    assert (reading.gbps(4.0), computing.tflops(6.0)) == (5.0, 1.0)
    assert ceilings.best(Ceilings(9.0, 3.0, "", "")) == Ceilings(10.0, 3.0, "", "")


def test_the_cost_of_a_decode_sample_is_that_of_its_mean_token(pico: BenchModel) -> None:
    settings = Settings(prompt_tokens=4, decode_tokens=4)
    runner = QwenRunner(pico, MLX, [5, 900, 31, 7], settings.context_tokens)
    cost = decode_comparison([runner], settings).cost
    # Three tokens see 1, 2 and 3 keys more than the context.
    assert cost(runner.name, 3) == runner.costs.decode(settings.context_tokens + 2)
    assert cost(runner.name, 1) == runner.costs.decode(settings.context_tokens + 1)
