"""Pages of keys and values: allocation, sharing and persistence."""
