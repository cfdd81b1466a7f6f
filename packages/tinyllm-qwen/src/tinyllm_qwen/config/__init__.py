"""The JSON files of a checkpoint: architecture, weight formats and sampling defaults."""
