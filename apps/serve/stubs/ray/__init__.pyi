"""As much of Ray 2.60 as tinyllm_serve.replicas uses: it is checked where Ray is not installed."""

class _Context:
    address_info: dict[str, str]

def init(
    *,
    address: str,
    namespace: str,
    log_to_driver: bool,
    logging_level: int,
    include_dashboard: bool | None = None,
    object_store_memory: int | None = None,
) -> _Context: ...
def nodes() -> list[dict[str, object]]: ...
def shutdown() -> None: ...
