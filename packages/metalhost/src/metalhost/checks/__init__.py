"""Checks of a kernel's text before it runs: the lint, and clang's type checks."""
