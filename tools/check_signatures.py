"""Checks that signatures on the API pages of the built site have the shapes of the source.

uv run --isolated --only-group docs zensical build --strict
uv run --no-sync python tools/check_signatures.py site
"""

import re
import sys
from html import unescape
from pathlib import Path

_ARRAY = re.compile(r"\b(?:Bool|Float|Float32|Integer|Int|Int32|UInt8|UInt32|Shaped)\[([^\]]+)\]")
_SOURCE = re.compile(r"""mx\.array,\s+("[^"]*"|'[^']*')""")


def changed(page: str) -> list[str]:
    """Return the types of arrays on a page that are not written as in the source."""
    text = unescape(re.sub(r"<[^>]+>", "", page))
    return [found[0] for found in _ARRAY.finditer(text) if not _SOURCE.fullmatch(found[1].strip())]


def main(site: Path) -> int:
    """Print the number of API pages. Return 1 if there is none, or if a type was changed."""
    pages = sorted(site.glob("api/*.html"))
    if not pages:
        print(f"{site}: expected a built site, found no pages in api/", file=sys.stderr)
        return 1
    print(f"{len(pages)} API pages")
    failed = False
    for page in pages:
        for found in changed(page.read_text(encoding="utf-8")):
            failed = True
            print(f"{page.name}: expected the type as in the source, got {found}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: check_signatures.py SITE")
    sys.exit(main(Path(sys.argv[1])))
