"""Chunks of bytes decode to the text of all bytes, and no piece has part of a character."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinyllm_qwen.text.tokenizer import IncrementalDetokenizer


def pieces(chunks: list[bytes]) -> list[str]:
    stream = IncrementalDetokenizer(chunks.__getitem__)
    return [*map(stream.push, range(len(chunks))), stream.finish()]


@given(st.lists(st.binary(max_size=5)))
def test_pieces_add_up_to_the_text_of_all_bytes(chunks: list[bytes]) -> None:
    assert "".join(pieces(chunks)) == b"".join(chunks).decode("utf-8", "replace")


@given(st.text(), st.data())
def test_text_never_shows_a_replacement_that_later_bytes_would_mend(
    text: str, data: st.DataObject
) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    bounds = list(zip([0, *cuts], [*cuts, len(whole)], strict=True))
    shown = ""
    for piece, (_, end) in zip(pieces([whole[a:b] for a, b in bounds]), bounds, strict=False):
        shown += piece
        assert shown == whole[:end].decode("utf-8", "ignore")  # each whole character, at once


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"\xf0\x9f", b"\x99\x82"], ["", "🙂", ""]),
        ([b"\xf0\x9f", b"a"], ["", "\ufffda", ""]),
        ([b"a\xe6", b"", b"\x97"], ["a", "", "", "\ufffd"]),
        ([b"\xff", b"b"], ["\ufffd", "b", ""]),
        ([], [""]),
    ],
)
def test_bytes_are_held_back_until_they_are_certain(
    chunks: list[bytes], expected: list[str]
) -> None:
    assert pieces(chunks) == expected


def test_after_the_end_a_new_text_begins() -> None:
    stream = IncrementalDetokenizer([b"\xe6", b"a"].__getitem__)
    assert stream.push(0) + stream.finish() == "\ufffd"
    assert stream.push(1) + stream.finish() == "a"


def test_time_is_linear_even_in_bytes_that_never_make_a_character() -> None:
    start = time.perf_counter()
    assert "".join(pieces([b"\x80"] * 200_000)) == "\ufffd" * 200_000
    assert time.perf_counter() - start < 30  # takes 1 s; quadratic decoders take minutes
