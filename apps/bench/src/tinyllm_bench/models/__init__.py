"""Models to measure: random weights of a published shape, or a checkpoint."""
