"""Checks that the search of the built site finds what a reader looks for.

uv run --isolated --only-group docs zensical build --strict
uv run --no-sync python tools/check_search.py site
"""

import json
import sys
from html import unescape
from pathlib import Path

# A term of the field, and a page that explains it.
EXPECTED = {
    "prefill": "engine.html",
    "prefix cache": "engine.html",
    "quantization": "learn/quantization.html",
    "continuous batching": "learn/batching.html",
    "speculation": "learn/speculation.html",
    "rmsnorm": "kernels/metal/rms-norm.html",
}


def found(items: list[dict[str, str]], term: str) -> set[str]:
    """Return the pages whose indexed titles or texts contain a term."""
    return {
        item["location"].split("#")[0]
        for item in items
        if term in unescape(f"{item['title']} {item['text']}").lower()
    }


def main(site: Path) -> int:
    """Print each term with the number of its pages. Return 1 if a page is missing."""
    index = site / "search.json"
    if not index.is_file():
        print(f"{index}: expected the index of a built site, found no file", file=sys.stderr)
        return 1
    items = json.loads(index.read_text(encoding="utf-8"))["items"]
    failed = False
    for term, page in EXPECTED.items():
        pages = found(items, term)
        print(f"{term}: {len(pages)} pages")
        if page not in pages:
            failed = True
            print(f"{term}: expected {page} in the index, got {sorted(pages)}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: check_search.py SITE")
    sys.exit(main(Path(sys.argv[1])))
