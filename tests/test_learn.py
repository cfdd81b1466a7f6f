"""The pages of docs/learn: their parts, their exercises and their pictures."""

import re
from pathlib import Path

import pytest
from learn.pages import LEARN
from learn.pictures import PICTURES
from learn.state_picture import KV, STATE, STATE_PICTURE, draw_state_memory
from metalhost import CompilerError, KernelFaultError, compiler
from test_docs_examples import Example, examples
from tinyllm_ops.testing.exercises import ExerciseError

CHAPTERS = sorted(PICTURES)
EXERCISE = "the function is the exercise"
MAX_LINES = 40


def page(chapter: str) -> str:
    return (LEARN / f"{chapter}.md").read_text(encoding="utf-8")


def exercise(chapter: str) -> Example:
    (found,) = [each for each in examples(page(chapter)) if each.reason == EXERCISE]
    return found


def lines(example: Example) -> int:
    return sum(bool(line.strip()) for line in example.code.splitlines())


def test_the_index_has_all_chapters_in_order() -> None:
    row = re.compile(r"^\| (\d) \| \[[^\]]+\]\((\w+)\.md\)", re.MULTILINE)
    rows = row.findall(page("index"))
    assert [int(number) for number, _ in rows] == list(range(1, len(CHAPTERS) + 1))
    assert sorted(chapter for _, chapter in rows) == CHAPTERS
    for number, chapter in rows:
        assert page(chapter).startswith(f"# {number}. ")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_has_all_its_parts(chapter: str) -> None:
    headings = re.findall(r"^## (.+)$", page(chapter), re.MULTILINE)
    assert headings == ["Formula", "Program", "Exercise", "Read next"]
    assert f"](img/{chapter}.svg)" in page(chapter)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_program_is_short_and_prints_what_the_page_says(chapter: str) -> None:
    (program,) = [each for each in examples(page(chapter)) if each.reason is None]
    assert lines(program) <= MAX_LINES
    assert program.printed


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_first_version_of_an_exercise_fails_with_a_hint(chapter: str) -> None:
    if chapter == "kernel":
        require_compiler()
    with pytest.raises(ExerciseError, match="hint: "):
        exercise(chapter).run(LEARN / f"{chapter}.md", {"__name__": "page"})


SOFTMAX = """
const uint first = width * threadgroup_position_in_grid.x, lane = thread_index_in_simdgroup;
float top = -INFINITY;
for (uint i = lane; i < width; i += 32) top = max(top, x[first + i]);
top = simd_max(top);
float total = 0;
for (uint i = lane; i < width; i += 32) total += metal::exp(x[first + i] - top);
total = simd_sum(total);
for (uint i = lane; i < width; i += 32) y[first + i] = metal::exp(x[first + i] - top) / total;
"""


def require_compiler() -> None:
    try:
        compiler()
    except CompilerError as error:
        pytest.skip(str(error))


def check_kernel(source: str) -> None:
    """Run the exercise of the last chapter with this text in place of the page's."""
    code = re.sub(r'""".*?"""', lambda _: f'"""{source}"""', exercise("kernel").code, flags=re.S)
    assert source in code
    Example(code, 0, None, None).run(LEARN / "kernel.md", {"__name__": "page"})


def test_a_softmax_kernel_passes_in_all_settings() -> None:
    require_compiler()
    check_kernel(SOFTMAX)


def test_a_softmax_kernel_that_reads_beyond_the_row_fails() -> None:
    require_compiler()
    with pytest.raises(KernelFaultError, match="x"):
        check_kernel(SOFTMAX.replace("i < width", "i < (width + 31) / 32 * 32"))


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    path = LEARN / "img" / f"{name}.svg"
    assert path.read_text(encoding="utf-8") == PICTURES[name](), "uv run python tools/learn"


def test_the_picture_of_states_has_the_bytes_that_its_page_prints() -> None:
    assert STATE_PICTURE.read_text(encoding="utf-8") == draw_state_memory(), (
        "uv run python tools/learn"
    )
    text = (LEARN.parent / "gated-delta-net.md").read_text(encoding="utf-8")
    (program,) = examples(text)
    assert lines(program) <= MAX_LINES
    assert f"100 tokens: state {STATE:,} bytes, KV {100 * KV:,}\n" in text


def test_every_picture_has_a_script() -> None:
    assert sorted(path.stem for path in (LEARN / "img").iterdir()) == CHAPTERS


def test_code_of_the_cpu_kernel_is_in_its_file() -> None:
    (shown,) = re.findall(r"^```cpp\n(.*?)^```", page("kernel"), re.DOTALL | re.MULTILINE)
    root = Path(__file__).parents[1]
    kernel = root / "packages/tinyllm-kernels/native/rows/rms_norm.h"
    assert shown in kernel.read_text(encoding="utf-8")


def test_the_glossary_is_sorted_and_links_each_term() -> None:
    entries = re.findall(r"^- \*\*([^*]+)\*\*: (.+?)(?=^- |\Z)", page("glossary"), re.S | re.M)
    terms = [term.lower() for term, _ in entries]
    assert terms == sorted(terms)
    assert all("](" in text for _, text in entries)


@pytest.mark.parametrize(
    ("chapter", "quoted", "source", "row"),
    [
        ("batching", "88 tokens a second", "engine.md", "| 1 | 88 | 1 | 11 /"),
        ("batching", "283 together", "engine.md", "| 8 | 283 | 3.2 | 27 /"),
        ("speculation", "11 ms for one row and 27 ms", "engine.md", "| 8 | 283 | 3.2 | 27 /"),
        ("quantization", "decoded 96.2", "bench.md", "| 96.2 | 70.9 | 1.36 | 32.3 of 43.1 GB/s"),
        ("quantization", "695 tokens a second in 4 bits", "bench.md", "512 tokens | 695 |"),
        ("quantization", "681 in bfloat16", "bench.md", "512 tokens | 681 |"),
        ("kernel", "63 µs for 128 rows", "kernels/rows.md", "256 | 63 µs | 59 µs | 10 µs |"),
    ],
)
def test_a_quoted_figure_is_on_the_page_that_measured_it(
    chapter: str, quoted: str, source: str, row: str
) -> None:
    assert quoted in " ".join(page(chapter).split())
    assert row in (LEARN.parent / source).read_text(encoding="utf-8")
