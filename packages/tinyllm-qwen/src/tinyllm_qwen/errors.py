"""Errors of checkpoints, conversions, templates and downloads."""


class CheckpointError(ValueError):
    """A file of a model cannot be used. The message names the file."""


class MemoryShortageError(CheckpointError):
    """The weights of a checkpoint do not fit into the free memory.

    Attributes:
        needed: the bytes of the weights in memory.
        free: the bytes that are free.
    """

    def __init__(self, message: str, *, needed: int, free: int) -> None:
        """Store the sizes, and a message with a remedy."""
        super().__init__(message)
        self.needed = needed
        self.free = free


class DraftHeadError(CheckpointError):
    """The files of a checkpoint have no draft head that can be used."""


class HubError(RuntimeError):
    """A repository cannot be fetched. It is missing or gated, or the network is unavailable."""


class TemplateError(ValueError):
    """A chat template cannot render the messages. The message is the template's, if it has one."""


class TextTooLongError(ValueError):
    """A text has more tokens than the caller or the model allows. The message has a remedy."""


class ConversionError(RuntimeError):
    """A checkpoint cannot be converted or written. The message has a remedy."""
