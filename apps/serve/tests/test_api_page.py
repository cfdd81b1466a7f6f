"""The page that describes the API, and its files."""

import asyncio
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from tinyllm_serve.application import make_endpoints
from tinyllm_serve.routes.api_page import FOLDER, TYPES
from tinyllm_serve.service import Service
from tinyllm_serve.settings import Settings
from tinyllm_serve.testing import Server

SCRIPT = f"{FOLDER}/swagger-ui-bundle.js"
LINUX = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
READERS = 50


def test_the_page_shows_the_endpoints_without_a_network(browser: Chrome, pico: Server) -> None:
    browser.get(f"{pico.url}/docs")
    WebDriverWait(browser, 20).until(lambda _: browser.find_elements(By.CLASS_NAME, "opblock"))
    paths = [each.text for each in browser.find_elements(By.CLASS_NAME, "opblock-summary-path")]
    assert any("completions" in path for path in paths)
    log = browser.get_log("browser")  # type: ignore[no-untyped-call]  # Selenium does not annotate it
    assert [line for line in log if line["level"] == "SEVERE"] == []


@pytest.mark.parametrize("name", TYPES)
def test_files_are_whole(pico: Server, name: str) -> None:
    url = f"{pico.url}{FOLDER}/{name}"
    whole, head = httpx.get(url), httpx.head(url)
    assert whole.headers["content-type"] == TYPES[name]
    assert len(whole.content) == int(whole.headers["content-length"]) > 1000
    assert (head.content, head.headers["content-length"]) == (b"", whole.headers["content-length"])


def test_other_files_are_not_found(pico: Server) -> None:
    for name in ("x", "..%2Fcore.py", "%2e%2e/core.py", "x/y"):
        assert httpx.get(f"{pico.url}{FOLDER}/{name}").status_code == 404


def test_the_openapi_document_is_built_once_outside_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, build = list[threading.Thread](), FastAPI.openapi

    def noted(app: FastAPI) -> dict[str, object]:
        threads.append(threading.current_thread())
        return build(app)

    async def get_twice() -> list[httpx.Response]:
        transport = httpx.ASGITransport(make_endpoints(Service(Settings())))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            gets = (client.get("/openapi.json") for _ in range(2))
            return await asyncio.gather(*gets)

    monkeypatch.setattr(FastAPI, "openapi", noted)
    first, second = asyncio.run(get_twice())
    assert first.json() == second.json()
    assert "/v1/chat/completions" in first.json()["paths"]
    (thread,) = threads
    assert thread is not threading.main_thread()


def open_scripts(server: Server) -> list[Path]:
    """Return the scripts that a server holds open."""
    paths = []
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            paths.append(link.readlink())
    return [path for path in paths if path.suffix == ".js"]


def kilobytes(server: Server) -> int:
    """Return the memory of a server."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS")]
    return int(line.split()[1])


@LINUX
def test_slow_readers_hold_no_files_and_little_memory(pico: Server) -> None:
    size = len(httpx.get(pico.url + SCRIPT).content)
    before = kilobytes(pico)
    address = urlsplit(pico.url)
    with ExitStack() as stack:
        for _ in range(READERS):
            reader = stack.enter_context(socket.socket())
            # The kernel takes a part of the file only: small windows, and segments as on a network.
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
            reader.connect((address.hostname, address.port))
            reader.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % SCRIPT.encode())
        time.sleep(1)
        assert open_scripts(pico) == []
        assert pico.metric("http_requests_in_flight") > READERS  # none has ended
        # 90 kB each; 1,500 kB if the transport copies the file.
        assert kilobytes(pico) - before < READERS * 300
        last = bytearray()
        reader.settimeout(20)
        while len(last) < size:
            last += reader.recv(65536)
    assert last.startswith(b"HTTP/1.1 200 ")
