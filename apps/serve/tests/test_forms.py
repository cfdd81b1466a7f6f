"""Fields that take several forms, such as a text, tokens, or a list of them."""

import httpx
import pytest
from tinyllm_serve.testing import Server


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"prompt": []}, "prompt: List should have at least 1 item"),
        ("/v1/completions", {"prompt": [5, -1]}, "prompt.1: Input should be greater than or equal"),
        ("/v1/completions", {"prompt": [[5], []]}, "prompt.1: List should have at least 1 item"),
        ("/v1/completions", {"prompt": ["a", 5]}, "prompt.1: Input should be a valid string"),
        ("/v1/completions", {"prompt": [5, 6.5]}, "prompt.1: Input should be a valid integer"),
        ("/v1/completions", {"prompt": [[5], "a"]}, "prompt.1: Input should be a valid"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "input: List should have at most 2048"),
        ("/v1/responses", {"input": []}, "input: List should have at least 1 item"),
    ],
)
def test_a_list_error_names_the_given_form(
    pico: Server, path: str, body: dict[str, object], message: str
) -> None:
    response = httpx.post(f"{pico.url}{path}", json=body)
    assert response.json()["error"]["message"].startswith(message)
