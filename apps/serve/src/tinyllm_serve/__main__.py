"""`python -m tinyllm_serve` is `serve`."""

from tinyllm_serve.cli import main

raise SystemExit(main())
