"""Errors of checkpoints, conversions, templates and downloads."""


class CheckpointError(ValueError):
    """A model's files cannot be used. The message names the file and a remedy."""


class HubError(RuntimeError):
    """A repository could not be fetched: missing, gated, offline, or the network failed."""


class TemplateError(ValueError):
    """A chat template cannot render these messages. The error has its own words, if it has any."""


class ConversionError(RuntimeError):
    """A checkpoint cannot be converted or written. The message has a remedy."""
