"""A second Ctrl-C, while the engine queues its requests again after the first one."""

import sys
from dataclasses import replace
from itertools import count
from types import FrameType
from typing import Any, NoReturn

import pytest
from tinyllm_engine import Engine, EngineSettings, Request, RequestState
from tinyllm_engine.testing import GREEDY, Oracle
from tinyllm_qwen import Qwen, Tokenizer

Model = tuple[Qwen, Tokenizer]
SETTINGS = EngineSettings(8, kv_cache_memory_bytes=1 << 23, max_num_seqs=2)


class TwoInterrupts:
    """Interrupts of a step: in its decode pass, and at the line of a number after that.

    Attributes:
        is_over: True once the engine has executed fewer lines than the number.
    """

    def __init__(self, engine: Engine, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over = True
        self._lines = count(1)
        self._number = number
        self._trace_before = sys.gettrace()
        monkeypatch.setattr(engine._runner, "decode", self._interrupt)

    def _interrupt(self, *_: object) -> NoReturn:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code.co_name in ("step", "run_step"):
                frame.f_trace = self._trace
            frame = frame.f_back
        sys.settrace(self._trace)
        raise KeyboardInterrupt

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if "tinyllm_engine" not in frame.f_code.co_filename:
            return None
        if event == "line" and next(self._lines) == self._number:
            self.is_over = False
            sys.settrace(self._trace_before)
            raise KeyboardInterrupt
        return self._trace

    def stop(self) -> None:
        sys.settrace(self._trace_before)


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def answer(handle: RequestState) -> list[int]:
    return handle.tokens[len(handle.prompt) :]


@pytest.mark.parametrize(
    ("cancels", "num_speculative_tokens"),
    [(False, 2), pytest.param(True, 0, marks=pytest.mark.exhaustive)],
)
def test_a_second_ctrl_c_changes_no_answer(
    hybrid: Model,
    prompts: list[list[int]],
    answers: Oracle,
    cancels: bool,
    num_speculative_tokens: int,
) -> None:
    engine = Engine(*hybrid, replace(SETTINGS, num_speculative_tokens=num_speculative_tokens))
    for number in count(1, 4):  # some 280 lines
        handles = [engine.add(Request(prompt, 2)) for prompt in prompts[3:6]]
        with pytest.MonkeyPatch.context() as patch:
            interrupts = TwoInterrupts(engine, number, patch)
            with pytest.raises(KeyboardInterrupt):
                finish(engine)
            interrupts.stop()
        if cancels:
            engine.cancel(handles.pop(number % 3))
        finish(engine)
        for handle in handles:
            assert answer(handle) == answers(handle.prompt, 2, GREEDY), number
        stats = engine.stats
        assert stats.pages_used == stats.states_used == stats.snapshots_used == 0
        if interrupts.is_over:
            break
    assert number > 100
