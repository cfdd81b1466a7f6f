"""The states of thinking: on, off, or an effort."""

EFFORTS = ("low", "medium", "xhigh")
"""The efforts of Qwen3.8's chat template."""

_VARIABLES: dict[str, dict[str, object]] = {
    "on": {"enable_thinking": True},
    "off": {"enable_thinking": False},
    **{effort: {"enable_thinking": True, "reasoning_effort": effort} for effort in EFFORTS},
}

STATES = tuple(_VARIABLES)
"""The names of all states."""


def template_variables(state: str | None) -> dict[str, object]:
    """Return the variables of the chat template for a state; none for the template's default."""
    return {} if state is None else _VARIABLES[state]
