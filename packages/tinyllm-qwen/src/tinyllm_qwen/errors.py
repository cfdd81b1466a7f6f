"""Errors of checkpoints, conversions, templates and downloads."""


class CheckpointError(ValueError):
    """A file of a model cannot be used. The message names the file."""


class HubError(RuntimeError):
    """A repository cannot be fetched. It is missing or gated, or the network is unavailable."""


class TemplateError(ValueError):
    """A chat template cannot render the messages. The message is the template's, if it has one."""


class TextTooLongError(ValueError):
    """A text has more tokens than the caller or the model allows. The message has a remedy."""


class ConversionError(RuntimeError):
    """A checkpoint cannot be converted or written. The message has a remedy."""
