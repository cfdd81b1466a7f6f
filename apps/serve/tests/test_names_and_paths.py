"""Names of the model, and paths that no endpoint has."""

import httpx
import pytest
from tinyllm_serve.testing import Server

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "#think"}], "max_tokens": 8}


def test_the_model_may_be_named_as_it_was_given(scripted: Server) -> None:
    (model,) = httpx.get(f"{scripted.url}/v1/models").json()["data"]
    assert model["root"].endswith("/scripted")
    assert model["id"] == "scripted"
    for name in (model["root"], model["id"]):
        answer = httpx.post(scripted.url + CHAT, json=BODY | {"model": name})
        assert (answer.status_code, answer.json()["model"]) == (200, "scripted")
    assert httpx.get(f"{scripted.url}/v1/models/{model['root']}").json() == model
    other = httpx.post(scripted.url + CHAT, json=BODY | {"model": "other/scripted"})
    assert other.status_code == 404


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/chat/completions", "append /v1 to the base URL"),
        ("/v1/v1/chat/completions", "write /v1 once"),
        ("/v1/messages", "no endpoint has the path '/v1/messages'"),
    ],
)
def test_a_wrong_base_url_is_named(scripted: Server, path: str, message: str) -> None:
    answer = httpx.post(scripted.url + path, json=BODY)
    assert answer.status_code == 404
    assert message in answer.json()["error"]["message"]
