"""Objects as JSON responses."""

from fastapi.responses import Response
from pydantic import BaseModel


def json_answer(body: BaseModel) -> Response:
    """A response that leaves out what there is none of."""
    return Response(body.model_dump_json(exclude_none=True), media_type="application/json")
