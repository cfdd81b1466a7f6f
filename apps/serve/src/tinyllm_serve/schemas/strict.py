"""The base of everything that clients send."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """An object that is taken as it is: no unknown fields, no text for numbers, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
