"""What a client gives to the chat template beside the conversation."""

from pydantic import BaseModel, ConfigDict, Field, model_validator

_TAKEN = ("messages", "tools", "add_generation_prompt")


class TemplateVariables(BaseModel):
    """Variables of the chat template, by name; which there are is the template's business."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    enable_thinking: bool | None = Field(
        default=None, description="Whether the model is to think first."
    )

    @model_validator(mode="after")
    def _free(self) -> "TemplateVariables":
        for name in _TAKEN:
            if name in self.others:
                raise ValueError(f"{name} has a field of its own, or is not to be chosen")
        return self

    @property
    def others(self) -> dict[str, object]:
        """All variables but `enable_thinking`."""
        return dict(self.model_extra or {})
