"""Errors of checkpoints, conversions, templates and downloads."""


class CheckpointError(ValueError):
    """A model's files cannot be used; the message names the file and what to do next."""


class HubError(RuntimeError):
    """A repository could not be fetched: missing, gated, offline, or the network failed."""


class TemplateError(ValueError):
    """A chat template cannot render these messages; in its own words, where it has any."""


class ConversionError(RuntimeError):
    """A checkpoint cannot be converted, or not written; the message says what to do next."""
