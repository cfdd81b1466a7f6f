"""From messages to token ids, and from token ids to text."""
