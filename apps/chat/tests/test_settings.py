"""Settings take what is allowed, and say what is where something else was given."""

import math

import pytest
from tinyllm_chat.errors import UsageError, one_line
from tinyllm_chat.sampling import idle_options, sampling_params
from tinyllm_chat.settings import Settings
from tinyllm_qwen import GenerationConfig


@pytest.mark.parametrize(
    ("field", "wrong", "says"),
    [
        ("ops", "cuda", "--ops: expected one of auto, cpu, metal, mlx, reference, got cuda"),
        ("dtype", "int8", "--dtype: expected one of auto, float32, float16, bfloat16, got int8"),
        ("max_tokens", 0, "--max-tokens: expected at least 1, got 0"),
        ("temperature", -0.5, "--temp"),
        ("temperature", math.nan, "--temp"),
        ("temperature", math.inf, "--temp"),
        ("top_k", -1, "--top-k"),
        ("top_p", 0.0, "--top-p"),
        ("min_p", 1.5, "--min-p"),
        ("repetition_penalty", 0.0, "--repetition-penalty"),
        ("seed", -1, "--seed"),
        ("seed", 2**64, "--seed"),
        ("stop", ("a", ""), "--stop"),
        ("kv_bits", 3, "--kv-bits: expected 4 or 8, got 3"),
        ("max_context", 1, "--max-context"),
        ("server", "127.0.0.1:8000", "--server: expected an address"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_option(
    field: str, wrong: object, says: str
) -> None:
    with pytest.raises(UsageError) as error:
        Settings(**{field: wrong})
    assert str(error.value).startswith(says)


ADVICE = GenerationConfig(
    do_sample=True, temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1
)


def test_sampling_is_the_checkpoints_advice() -> None:
    params = sampling_params(Settings(), ADVICE, 3)
    given = (params.temperature, params.top_k, params.top_p, params.min_p)
    assert given == (0.6, 20, 0.95, 0.1)
    assert (params.repetition_penalty, params.seed) == (1.1, 3)


def test_a_checkpoint_that_advises_no_sampling_is_decoded_greedily() -> None:
    assert sampling_params(Settings(), GenerationConfig(temperature=0.6), 0).is_greedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("top_k", 0),
        ("top_p", 1.0),
        ("min_p", 0.0),
        ("repetition_penalty", 1.0),
    ],
)
def test_an_option_overrides_the_advice_even_to_turn_it_off(field: str, value: float) -> None:
    params = sampling_params(Settings(**{field: value}), ADVICE, 0)
    assert getattr(params, field) == value


def test_options_without_effect_are_known() -> None:
    greedy = GenerationConfig()
    assert idle_options(Settings(top_p=0.5, min_p=0.1), greedy) == ["--top-p", "--min-p"]
    assert idle_options(Settings(top_p=0.5, temperature=1.0), greedy) == []
    assert idle_options(Settings(top_p=0.5), ADVICE) == []


def test_an_error_of_many_lines_is_one_line_that_can_be_read() -> None:
    error = ValueError("not those described\n  missing (2):\n    a\n    b\nDownload again.")
    assert one_line(error) == "not those described; missing (2): a; b; Download again."
    assert one_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    "options", [{"ops": "cpu"}, {"dtype": "float32"}, {"kv_bits": 4}, {"revision": "main"}]
)
def test_what_a_server_decides_is_not_asked_of_it(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="not beside --server"):
        Settings(server="http://127.0.0.1:8000", **options)
