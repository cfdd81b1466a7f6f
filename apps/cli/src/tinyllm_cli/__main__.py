"""Run `tinyllm` as `python -m tinyllm_cli`."""

import sys

from tinyllm_cli.cli import main

sys.exit(main())
