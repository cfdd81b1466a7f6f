"""Run `serve` as `python -m tinyllm_serve`."""

from tinyllm_serve.cli import run_process

run_process()
