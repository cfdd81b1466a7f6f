import jaxtyping
import mlx.core as mx
import pytest
import tinyllm_layers
from tinyllm_layers import Embedding


def test_signatures_are_checked_at_run_time_under_pytest() -> None:
    table = Embedding(4, 3, mx.zeros((4, 3)))
    with pytest.raises(jaxtyping.TypeCheckError, match="ids"):
        table(mx.zeros((2,)))


def test_the_fixture_unchecked_turns_off_the_signature_check(unchecked: None) -> None:
    table = Embedding(4, 3, mx.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"ids: expected an integer dtype, got .*float32"):
        table(mx.zeros((2,)))


def test_every_public_name_exists() -> None:
    missing = [name for name in tinyllm_layers.__all__ if not hasattr(tinyllm_layers, name)]
    assert missing == []
