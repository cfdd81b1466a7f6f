"""The ends of answers, and answers after a preemption."""

import pytest
from tinyllm_engine import Engine, EngineSettings, Grammar, Output, Request
from tinyllm_qwen import Qwen, SamplingParams, Tokenizer

Model = tuple[Qwen, Tokenizer]


@pytest.mark.parametrize("next_turn_first", [False, True])
def test_a_preempted_request_decodes_its_answer_again(
    pico: Model, prompts: list[list[int]], *, next_turn_first: bool
) -> None:
    """Pages of another request may hold the same tokens, prefilled: their numbers differ."""
    drawn = SamplingParams(temperature=1.2, seed=5)
    settings = EngineSettings(page_size=4, max_num_seqs=2)
    request = Request(prompts[0], 60, drawn, tenant="a", logprobs=True, ignore_end=True)
    alone_engine, engine = Engine(*pico, settings), Engine(*pico, settings)
    alone = [(each.token, each.logprob) for each in alone_engine.run(alone_engine.add(request))]
    if next_turn_first:
        turn = [*prompts[0], *(token for token, _ in alone[:40])]
        list(engine.run(engine.add(Request(turn, 1, tenant="a"))))
    engine.add(Request(prompts[0][:3], 200, tenant="a", ignore_end=True))
    handle, outputs = engine.add(request), list[Output]()
    while handle.generated < 30:
        outputs += [output for owner, output in engine.step() if owner is handle]
    engine.add(Request([7, 8, 9], 2, tenant="b", ignore_end=True))  # takes the seat
    while handle.finish_reason is None:
        outputs += [output for owner, output in engine.step() if owner is handle]
    assert engine.stats.preemptions == 1
    assert [(output.token, output.logprob) for output in outputs] == alone
    while engine.has_work:
        engine.step()


def test_a_text_that_ends_within_a_character_can_end_with_a_stop_string(pico: Model) -> None:
    request = Request([1], 1, stop=["\ufffd"], grammar=Grammar.regex("\U0001f600"))
    engine = Engine(*pico)
    (output,) = engine.run(engine.add(request))
    assert (output.text, output.finish_reason, output.stop) == ("", "stop", "\ufffd")


def test_the_name_of_a_special_token_can_be_a_stop_string(pico: Model) -> None:
    tokenizer = pico[1]
    (token,) = tokenizer.encode("<|im_start|>")
    assert token in tokenizer.special_token_ids - tokenizer.eos_token_ids
    forced = SamplingParams(logit_bias={token: 1000.0})
    engine = Engine(*pico)
    (output,) = engine.run(engine.add(Request([1], 5, forced, ["zq", "<|im_start|>"])))
    assert (output.text, output.finish_reason, output.stop) == ("", "stop", "<|im_start|>")
