"""OpenAI's shape of errors, for the documentation."""

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """What is wrong.

    Attributes:
        message: for people.
        type: the kind of error.
        param: the field that is at fault.
        code: for programs.
    """

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The envelope."""

    error: ErrorDetail
