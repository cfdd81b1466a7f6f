"""The chat page in a real browser."""

import json
from collections.abc import Callable

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait
from tinyllm_serve.testing import Server

Browser = Chrome


def wait(browser: Browser, done: Callable[[], object]) -> None:
    WebDriverWait(browser, 20, poll_frequency=0.05).until(lambda _: done())


def say(browser: Browser, text: str) -> None:
    browser.find_element(By.NAME, "question").send_keys(text, Keys.ENTER)


def texts(browser: Browser, selector: str) -> list[str]:
    return [each.text for each in browser.find_elements(By.CSS_SELECTOR, selector)]


def shown(browser: Browser, identity: str) -> bool:
    return browser.find_element(By.ID, identity).is_displayed()


def script(browser: Browser, text: str) -> object:
    return browser.execute_script(text)


def open_page(browser: Browser, server: Server) -> None:
    browser.get(server.url)
    wait(browser, lambda: texts(browser, "#model") != [""])


def test_a_conversation(browser: Browser, pico: Server) -> None:
    open_page(browser, pico)
    assert texts(browser, "#model") == ["pico"]
    say(browser, "what does rmsnorm do?")
    wait(browser, lambda: shown(browser, "send"))
    assert "root mean square" in texts(browser, ".assistant > .text")[0]
    assert "tokens/s" in texts(browser, ".figures")[0]
    say(browser, "and what is attention?")
    wait(browser, lambda: len(texts(browser, ".assistant > .text")) == 2 and shown(browser, "send"))
    browser.find_element(By.ID, "new").click()
    assert texts(browser, "article") == []
    log = browser.get_log("browser")  # type: ignore[no-untyped-call]  # Selenium does not annotate it
    assert [line for line in log if line["level"] == "SEVERE"] == []


def test_reasoning_is_folded(browser: Browser, scripted: Server) -> None:
    open_page(browser, scripted)
    say(browser, "#think")
    wait(browser, lambda: shown(browser, "send"))
    assert texts(browser, ".assistant > .text") == ["It is so."]
    thought = browser.find_element(By.CSS_SELECTOR, "details .text")
    assert not thought.is_displayed()
    browser.find_element(By.TAG_NAME, "summary").click()
    assert (thought.is_displayed(), thought.text) == (True, "Hm.")


def test_stop_cancels_the_answer(browser: Browser, busy: Server) -> None:
    open_page(browser, busy)
    say(browser, "hello")
    wait(browser, lambda: texts(browser, ".assistant > .text")[0:1] not in ([], [""]))
    assert not shown(browser, "send")
    browser.find_element(By.ID, "stop").click()
    wait(browser, lambda: shown(browser, "send"))
    assert texts(browser, ".figures")[0].endswith("stopped")
    busy.wait_until("num_requests_running", 0.0)


def test_a_new_conversation_has_no_part_of_the_answer_in_progress(
    browser: Browser, busy: Server
) -> None:
    open_page(browser, busy)
    script(browser, "const send = fetch; fetch = (...given) => (sent = given[1], send(...given));")
    say(browser, "hello")
    wait(browser, lambda: texts(browser, ".assistant > .text")[0:1] not in ([], [""]))
    browser.find_element(By.ID, "new").click()
    assert shown(browser, "send")
    busy.wait_until("num_requests_running", 0.0)
    say(browser, "again")
    sent = json.loads(str(script(browser, "return sent.body")))
    assert sent["messages"] == [{"role": "user", "content": "again"}]
    browser.find_element(By.ID, "stop").click()
    busy.wait_until("num_requests_running", 0.0)


def test_messages_are_not_markup(browser: Browser, pico: Server) -> None:
    open_page(browser, pico)
    say(browser, "<img src=x onerror=alert(1)>")
    wait(browser, lambda: shown(browser, "send"))
    assert texts(browser, ".user > .text") == ["<img src=x onerror=alert(1)>"]
    assert browser.find_elements(By.TAG_NAME, "img") == []


def test_the_page_asks_for_a_key(browser: Browser, guarded: Server) -> None:
    browser.get(guarded.url)
    wait(browser, lambda: shown(browser, "key"))
    browser.find_element(By.NAME, "key").send_keys("second", Keys.ENTER)
    wait(browser, lambda: texts(browser, "#model") == ["pico"])
    assert not shown(browser, "key")
