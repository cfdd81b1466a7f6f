"""Execution of a program over arrays, and reports of the faults that it found."""
