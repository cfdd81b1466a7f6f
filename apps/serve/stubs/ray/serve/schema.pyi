from collections.abc import Mapping

class LoggingConfig:
    def __init__(self, *, log_level: str, enable_access_log: bool) -> None: ...

class _DeploymentStatus:
    message: str
    replica_states: Mapping[str, int]

class _ApplicationStatus:
    deployments: Mapping[str, _DeploymentStatus]

class ServeStatus:
    applications: Mapping[str, _ApplicationStatus]
