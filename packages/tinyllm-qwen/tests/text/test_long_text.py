"""Encoding of long texts: the same tokens, in bounded memory, beside other threads."""

import threading
import time
from itertools import product
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_qwen.errors import TextTooLongError
from tinyllm_qwen.text import encoder
from tinyllm_qwen.text.pieces import PATTERNS, can_be_cut, cut
from tinyllm_qwen.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[1] / "goldens" / "qwen3"
TOKENIZER = Tokenizer.from_folder(FOLDER)
BACKEND = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
ADDED = [token.content for token in BACKEND.get_added_tokens_decoder().values()]


def backend_with(pattern: str) -> tokenizers.Tokenizer:
    """Return the tokenizer with another pattern."""
    backend = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    parts = tokenizers.pre_tokenizers
    backend.pre_tokenizer = parts.Sequence(
        [
            parts.Split(tokenizers.Regex(pattern), "isolated"),
            parts.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return backend


BACKENDS = [backend_with(pattern) for pattern in sorted(PATTERNS)]

texts = st.lists(
    st.sampled_from([*ADDED, " ", "  ", "\n", "\r\n", "\t", "'s", "'ll", "a", "Ab", "12", "中文"])
    | st.sampled_from(
        ["。", ",", "\u0301", "\u3099", "か", "한", "\u11a8", "\u212a", "é", "...", ";\n"]
    )
    | st.text(st.characters(codec="utf-8"), max_size=3),
    max_size=30,
).map("".join)


@settings(max_examples=400, deadline=None)
@given(texts, st.integers(1, 5), st.sampled_from(BACKENDS))
def test_pieces_have_the_tokens_of_the_text(
    text: str, size: int, backend: tokenizers.Tokenizer
) -> None:
    assert can_be_cut(backend)
    parts = list(cut(text, ADDED, size))
    assert "".join(parts) == text
    ids = [token for part in parts for token in backend.encode(part).ids]
    assert ids == backend.encode(text).ids


@pytest.mark.parametrize(
    "left", [*"a0\n中", *(pytest.param(left, marks=pytest.mark.exhaustive) for left in "Z9\rあ한")]
)
def test_every_pair_of_characters_may_be_at_an_end(left: str) -> None:
    for right, before, after in product(
        map(chr, range(128)),
        ("", " ", "\n", "'", "a", "1", ".", " 's", "\u0301"),
        ("", " ", "b", "\n", "\u0301", "s", " \n"),
    ):
        text = before + left + right + after
        ids = [token for part in cut(text, (), 1) for token in BACKEND.encode(part).ids]
        assert ids == BACKEND.encode(text).ids


def test_a_long_text_is_cut_often() -> None:
    text = "def f(x):\n    return {'a': [x ** 2, -1]}  # 10 µs and 中文。\n" * 20
    assert max(map(len, cut(text, ADDED, 1))) < 20


@pytest.mark.parametrize("changes", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}])
def test_texts_are_whole_if_tokens_depend_on_the_text_around_them(changes: dict[str, bool]) -> None:
    backend = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    backend.add_tokens([tokenizers.AddedToken("<x>", normalized=False, **changes)])
    assert not can_be_cut(backend)


@pytest.mark.parametrize("pattern", [r"\w+|\W+", r"\s+"])
def test_texts_are_whole_under_an_unknown_pattern(pattern: str) -> None:
    assert not can_be_cut(backend_with(pattern))


def test_a_long_text_has_the_tokens_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "PIECE_LENGTH", 100)
    text = "one two, <|im_end|>three 4567\n" * 300
    assert TOKENIZER.encode(text) == BACKEND.encode(text).ids


def test_a_text_that_can_never_fit_is_refused_at_once() -> None:
    start = time.perf_counter()
    with pytest.raises(TextTooLongError, match="at most 1000 tokens, got at least"):
        TOKENIZER.encode("word " * 2_000_000, max_tokens=1000)
    assert time.perf_counter() - start < 1  # 10 ms; 10 s to encode the text


@pytest.mark.parametrize("start", ["", "é"], ids=ascii)
def test_a_text_is_refused_once_it_has_too_many_tokens(start: str) -> None:
    text = start + "word " * 100_000
    with pytest.raises(TextTooLongError, match="at most 150000 tokens, got at least"):
        TOKENIZER.encode(text, max_tokens=150_000)
    count = len(TOKENIZER.encode(text))
    assert len(TOKENIZER.encode(text, max_tokens=count)) == count


def test_a_word_without_end_is_refused() -> None:
    with pytest.raises(TextTooLongError, match="the end of a word within"):
        TOKENIZER.encode("é" * 600_000, max_tokens=10_000_000)


def test_other_threads_run_while_a_text_is_encoded() -> None:
    text = "The quick brown fox, 1234 times.\n" * 12_000  # 0.4 MB; `encode` held the lock for 1 s
    gaps = []
    done = threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            gaps.append(time.perf_counter() - last)
            last += gaps[-1]

    ticker = threading.Thread(target=tick)
    ticker.start()
    TOKENIZER.encode(text)
    done.set()
    ticker.join()
    assert max(gaps) < 0.5


def test_a_long_list_of_tokens_has_the_text_of_the_library() -> None:
    ids = [*TOKENIZER.encode("é中🙂 <|im_end|>x\n"), *range(TOKENIZER.vocab_size)] * 100
    for skip in (False, True):
        expected = BACKEND.decode(ids, skip_special_tokens=skip)
        assert TOKENIZER.decode(ids, skip_special_tokens=skip) == expected
