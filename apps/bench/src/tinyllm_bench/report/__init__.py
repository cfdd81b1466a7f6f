"""Report of a run as tables, JSON or an image."""
