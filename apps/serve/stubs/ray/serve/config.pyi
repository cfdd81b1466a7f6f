from ray.serve.request_router import RequestRouter

class AutoscalingConfig:
    def __init__(
        self,
        *,
        min_replicas: int,
        max_replicas: int,
        target_ongoing_requests: float,
        metrics_interval_s: float,
        look_back_period_s: float,
        upscale_delay_s: float,
        downscale_delay_s: float,
    ) -> None: ...

class RequestRouterConfig:
    def __init__(
        self,
        *,
        request_router_class: type[RequestRouter],
        request_router_kwargs: dict[str, object] | None = None,
    ) -> None: ...
