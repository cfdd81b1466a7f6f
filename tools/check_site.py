"""Checks what the build of the site does not: its search, and the signatures on its API pages.

uv run --isolated --only-group docs zensical build --strict
uv run --no-sync python tools/check_site.py site
"""

import json
import re
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

_ARRAY = re.compile(r"\b(?:Bool|Float|Float32|Integer|Int|Int32|UInt8|UInt32|Shaped)\[([^\]]+)\]")
_SOURCE = re.compile(r"""mx\.array,\s+("[^"]*"|'[^']*')""")


def found(items: list[dict[str, str]], term: str) -> set[str]:
    """Return the pages whose indexed titles or texts contain a term."""
    return {
        item["location"].split("#")[0]
        for item in items
        if term in unescape(f"{item['title']} {item['text']}").lower()
    }


def changed(page: str) -> list[str]:
    """Return the types of arrays on a page that are not written as in the source."""
    text = unescape(re.sub(r"<[^>]+>", "", page))
    return [array[0] for array in _ARRAY.finditer(text) if not _SOURCE.fullmatch(array[1].strip())]


def faults(site: Path) -> list[str]:
    """Return the faults of a built site, one in a line."""
    index, api = site / "search.json", sorted(site.glob("api/*.html"))
    if not index.is_file() or not api:
        return [f"{site}: expected a built site, found no search.json or no pages in api/"]
    items = json.loads(index.read_text(encoding="utf-8"))["items"]
    missing = [
        f"{term}: expected {page} in the index, got {sorted(found(items, term))}"
        for term, page in EXPECTED.items()
        if page not in found(items, term)
    ]
    return missing + [
        f"{page.name}: expected the type as in the source, got {array}"
        for page in api
        for array in changed(page.read_text(encoding="utf-8"))
    ]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: check_site.py SITE")
    sys.exit("\n".join(faults(Path(sys.argv[1]))) or 0)
