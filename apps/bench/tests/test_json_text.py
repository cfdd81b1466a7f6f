"""The JSON of `bench` has one measured row a line."""

import json

from tinyllm_bench.report.json_text import json_text

DOCUMENT = {
    "format": "a/1",
    "machine": {"cpu": "EPYC", "cores": 2},
    "results": [{"by": "cpu", "samples": [0.1, 0.2], "cold": None}, {"by": "mlx", "samples": []}],
    "groups": {"a": {"rows": [{"x": 1}]}},
    "notices": ["missing", 'a "quoted" line'],
    "empty": [],
}
TEXT = """{
 "format": "a/1",
 "machine": {"cpu": "EPYC", "cores": 2},
 "results": [
  {"by": "cpu", "samples": [0.1, 0.2], "cold": null},
  {"by": "mlx", "samples": []}
 ],
 "groups": {
  "a": {
   "rows": [
    {"x": 1}
   ]
  }
 },
 "notices": ["missing", "a \\"quoted\\" line"],
 "empty": []
}"""


def test_a_row_takes_one_line() -> None:
    assert json_text(DOCUMENT) == TEXT
    assert json.loads(TEXT) == DOCUMENT
