"""Parts and tables of the CPU kernels: names, speeds, and the table in the docs."""

import json
from pathlib import Path
from typing import Any

import pytest
from cpu_kernels import measure
from cpu_kernels.measure import Document, measure_part
from cpu_kernels.parts import Part, all_parts, choose_parts
from cpu_kernels.scaling import CLOCK, Fit, scaling_table
from cpu_kernels.table import BEGIN, CASES, END, markdown_table, updated_page
from plot.cpu_kernels import figure_of_kernels
from tinyllm_bench.errors import BenchError
from tinyllm_cli.messages import UsageError

DOCS = Path(__file__).parents[3] / "docs"
ISAS = ["amx", "avx512vnni", "avx512", "avxvnni", "avx2", "portable"]


def model_part(*speeds: tuple[str, float]) -> dict[str, Any]:
    """Return a part with two documents, in which each program has the same speed."""
    machine = {"cpu": "a CPU", "cores": 2}
    rows = [
        {
            "what": "model",
            "regime": regime,
            "by": by,
            "tokens_per_second": speed,
            "share_of_read": 0.5,
            "cold": False,
        }
        for regime in ("prefill", "decode")
        for by, speed in speeds
    ]
    return {"documents": [{"machine": machine, "results": rows}] * 2}


def engine_part() -> dict[str, Any]:
    batches = [{"requests": n, "tokens_per_second": 10.0 + 5 * n} for n in (1, 8, 8)]
    long_prompt = {"prompt_tokens": 4096, "prompt_seconds": 4.0}
    return {"documents": [{"engine": {"batches": batches, "long_prompt": long_prompt}}]}


def test_the_fastest_instruction_set_and_common_ones_below_it_are_measured() -> None:
    assert {part.isa for part in all_parts(ISAS)} == {"amx", "avx512vnni", "avxvnni", "avx2"}
    assert {part.isa for part in all_parts(["neon", "portable"])} == {"neon"}
    assert {part.isa for part in all_parts(ISAS[1:])} == {"avx512vnni", "avxvnni", "avx2"}
    names = [part.name for part in all_parts(ISAS)]
    assert len(set(names)) == len(names)
    cases = {name.split("/")[1] for name in names}
    assert {case.part for case in CASES} <= cases


def test_parts_are_chosen_by_name_and_by_instruction_set() -> None:
    assert [p.name for p in choose_parts(ISAS, [], ["avx2/engine"])] == ["avx2/engine"]
    assert {p.isa for p in choose_parts(ISAS, ["avx2"], [])} == {"avx2"}
    with pytest.raises(UsageError, match="--part: expected one of amx/prompt-512"):
        choose_parts(ISAS, [], ["amx/prompt-7"])
    expected = "--isa: expected one of amx, avx2, avx512vnni, avxvnni, got neon"
    with pytest.raises(UsageError, match=expected):
        choose_parts(ISAS, ["neon"], [])


def test_a_part_is_a_process_with_its_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['TINYLLM_CPU_ISA']]))"
    monkeypatch.setattr(measure, "_BENCH", code)
    part = Part("avx2/engine", "avx2", "engine --rounds 2", {"TINYLLM_NUM_THREADS": "1"})
    found = measure_part(part, {})
    assert found["documents"] == [[["engine", "--rounds", "2", "--json"], "avx2"]]
    assert found["environment"] == {"TINYLLM_CPU_ISA": "avx2", "TINYLLM_NUM_THREADS": "1"}
    monkeypatch.setattr(measure, "_BENCH", "import sys; sys.exit(3)")
    with pytest.raises(BenchError, match="avx2/engine: bench exited with code 3"):
        measure_part(part, {})


def test_the_table_has_ratios_and_adds_processes() -> None:
    document = Document(
        {
            "amx/prompt-512": model_part(
                ("cpu", 30.0), ("llama.cpp Q4_0", 20.0), ("openvino", 15.0), ("cpu-int8", 50.0)
            ),
            "amx/engine": engine_part(),
            "amx/engine-int8": engine_part(),
        }
    )
    rows = markdown_table(document).splitlines()
    assert "| prompt of 512 | 60.0 | 40.0 | 1.50 | 30.0 | 2.00 |  |" in rows
    assert "| prompt of 512, `cpu-int8` | 100 | 40.0 | 2.50 | 30.0 | 3.33 |  |" in rows
    assert "| decode, empty cache | 60.0 | 40.0 | 1.50 | 30.0 | 2.00 | 50% |" in rows
    assert "| engine: 8 requests | 50.0 (3.33 times one) | | | | | |" in rows
    assert "| engine, `cpu-int8`: 8 requests | 50.0 (3.33 times one) | | | | | |" in rows
    assert "| engine: prompt of 4,096 beside other requests | 1,024 | | | | | |" in rows


def test_a_table_has_the_chosen_instruction_sets() -> None:
    document = Document({"amx/engine": engine_part(), "avx2/engine": engine_part()})
    assert document.of_isas([]) == document
    assert document.of_isas(["avx2"]).isas() == ["avx2"]
    with pytest.raises(UsageError, match="--isa: expected one of amx, avx2, got neon"):
        document.of_isas(["neon"])


def test_the_table_replaces_the_one_between_the_marks() -> None:
    page = f"text\n{BEGIN}old\n{END}more\n"
    assert updated_page(page, "new\n") == f"text\n{BEGIN}\nnew\n\n{END}more\n"
    with pytest.raises(BenchError, match="--page: expected the lines"):
        updated_page("text", "new")


@pytest.mark.parametrize(
    ("page", "document"),
    [
        ("xeon", "cpu-kernels"),
        ("xeon5", "cpu-kernels-xeon5"),
        ("zen5", "cpu-kernels-zen5"),
        ("zen4", "cpu-kernels-zen4"),
        ("avxvnni", "cpu-kernels-avxvnni"),
        ("zen3", "cpu-kernels-zen3"),
    ],
)
def test_the_tables_of_the_docs_are_those_of_the_measured_documents(
    page: str, document: str
) -> None:
    text = (DOCS / "kernels" / f"{page}.md").read_text()
    measured = Document.read(DOCS / "measured" / f"{document}.json")
    assert updated_page(text, markdown_table(measured)) == text
    assert "| prompt of 512 |" in text


def test_the_prediction_of_the_docs_is_that_of_the_measured_document() -> None:
    measured = Document.read(DOCS / "measured" / "cpu-kernels.json")
    assert scaling_table(measured, 245.0) in (DOCS / "kernels" / "scaling.md").read_text()


def test_a_table_does_not_depend_on_the_order_of_measurements() -> None:
    document = Document()
    for name in ("avxvnni/prompt-512", "avx2/prompt-512"):
        document.add(name, model_part(("cpu", 30.0)))
    assert [*document.of_isas([]).parts] == ["avx2/prompt-512", "avxvnni/prompt-512"]


def test_a_first_call_is_marked() -> None:
    part = model_part(("cpu", 30.0))
    part["documents"][1]["results"][0]["cold"] = True
    assert "| prompt of 512 | 60.0 † |" in markdown_table(Document({"amx/prompt-512": part}))


def test_every_instruction_set_with_a_model_is_a_panel(tmp_path: Path) -> None:
    document = Document()
    document.add("amx/prompt-512", model_part(("cpu", 30.0), ("openvino int4", 15.0)))
    document.add("avx2/engine", engine_part())
    document.add("avx2/pico", model_part(("cpu", 30.0), ("llama.cpp Q4_0", 15.0)))
    document.add("neon/engine", engine_part())
    document.write(tmp_path / "run.json")
    content = json.loads((tmp_path / "run.json").read_text())
    assert Document.read(tmp_path / "run.json") == document
    figure = figure_of_kernels(content)
    assert [axes.get_title() for axes in figure.axes] == ["amx: tokens/s", "avx2: tokens/s"]
    figure.savefig(tmp_path / "run.png")
    with pytest.raises(BenchError, match="has no speeds of a model"):
        figure_of_kernels({"parts": {"neon/engine": engine_part()}})


def test_more_cores_are_predicted_from_one_and_two_threads() -> None:
    fit = Fit.of(10e-3, 6e-3)
    assert fit.serial == pytest.approx(2e-3)
    assert [fit.seconds(n) for n in (1, 2)] == pytest.approx([10e-3, 6e-3])
    assert Fit.of(10e-3, 4e-3) == Fit(0.0, 10e-3)  # two threads cannot be more than twice as fast
    assert fit.seconds(8, least=3e-3) > fit.serial + 3e-3
    assert fit.seconds(64) > fit.seconds(32) - fit.parallel / 64  # barriers between nodes cost

    def run(prefill: float, decode: float) -> dict[str, Any]:
        rows = [
            {"by": "cpu", "regime": "prefill", "median": prefill, "tokens": 512, "bytes": 1},
            {"by": "cpu", "regime": "decode", "median": decode, "tokens": 1, "bytes": 10**9},
        ]
        return {"documents": [{"results": rows}]}

    document = Document({"amx/one-thread": run(1.0, 0.1), "amx/prompt-512": run(0.5, 0.05)})
    rows = [line.split(" | ") for line in scaling_table(document, 100.0).splitlines()[2:]]
    assert [row[0] for row in rows] == [f"| {n}" for n in (1, 2, 4, 8, 16, 32, 64)]
    assert rows[0][2:] == ["512", "10.0", "10.0 |"]
    assert rows[1][2:] == ["1,024", "20.0", "20.0 |"]
    assert float(rows[2][2].replace(",", "")) == pytest.approx(512 * 4 * CLOCK, rel=1e-2)
    # A node reads the bytes of a token in 10 ms, and two nodes do in 5 ms.
    assert [float(each) for each in rows[-1][3:4]] == pytest.approx([200], rel=0.05)
    assert float(rows[-1][4].strip(" |")) == pytest.approx(100, rel=0.05)
    with pytest.raises(BenchError, match="has no part"):
        scaling_table(Document(), 100.0)
