"""What an endpoint tells the log about a request: counts and names, never text."""

from starlette.requests import Request

Note = dict[str, object]


def note_of(request: Request) -> Note:
    """The notes on a request; what is added to them is logged when it ends."""
    note: Note = request.state.note
    return note
