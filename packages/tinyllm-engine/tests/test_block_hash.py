from array import array

from hypothesis import given
from hypothesis import strategies as st
from tinyllm_engine.kv.block_manager import block_hashes

tokens = st.lists(st.integers(0, 200_000), max_size=30)


@given(tokens, tokens, st.integers(1, 5))
def test_two_texts_share_the_hashes_of_their_common_prefix(
    a: list[int], b: list[int], page_size: int
) -> None:
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    pairs = zip(block_hashes(a, page_size), block_hashes(b, page_size), strict=False)
    assert [x == y for x, y in pairs] == [
        (page + 1) * page_size <= same for page in range(min(len(a), len(b)) // page_size)
    ]


@given(tokens, st.integers(1, 5), st.data())
def test_known_hashes_are_extended(text: list[int], page_size: int, data: st.DataObject) -> None:
    keys = block_hashes(text, page_size)
    assert len(keys) == len(text) // page_size
    known = keys[: data.draw(st.integers(0, len(keys)))]
    assert block_hashes(text, page_size, known) == keys


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=30), st.text(), st.text())
def test_texts_with_different_salts_share_no_hashes(text: list[int], a: str, b: str) -> None:
    first, second = (block_hashes(text, 1, salt=salt) for salt in (a, b))
    assert (first == second) is (a == b)
    assert a == b or not set(first) & set(second)
    assert block_hashes(text, 1, first[:1], salt=a) == first


def test_no_salt_imitates_a_page() -> None:
    first, second = list(range(32, 48)), list(range(300, 316))
    salt = array("I", first).tobytes().decode()
    assert block_hashes(second, 16, salt=salt)[0] not in block_hashes(first + second, 16)
