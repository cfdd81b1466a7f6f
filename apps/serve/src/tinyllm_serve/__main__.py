"""Run `serve` as `python -m tinyllm_serve`."""

from tinyllm_serve.cli import main

raise SystemExit(main())
