"""The architecture and the formats that a checkpoint's JSON files describe."""
