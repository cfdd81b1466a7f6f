"""Models to measure: published shapes, random weights, checkpoints."""
