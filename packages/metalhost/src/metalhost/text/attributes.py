"""Thread attributes of Metal, in the order in which MLX adds them to a signature."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Attribute:
    """Parameter that MLX adds to the signature if the body of the kernel contains its name.

    Attributes:
        name: name of the attribute and of the parameter.
        type: Metal type.
        value: C++ expression for the value, in terms of `at`, the runtime's `Coordinates`.
    """

    name: str
    type: str
    value: str


def _scalar(name: str, value: str) -> Attribute:
    return Attribute(name, "uint", value)


def _triple(name: str, member: str) -> Attribute:
    components = ", ".join(f"at.{member}[{k}]" for k in range(3))
    return Attribute(name, "uint3", f"uint3({components})")


ATTRIBUTES = (
    _scalar("dispatch_quadgroups_per_threadgroup", "at.dispatched_simdgroups * 8"),
    _scalar("dispatch_simdgroups_per_threadgroup", "at.dispatched_simdgroups"),
    _triple("dispatch_threads_per_threadgroup", "dispatched_group_size"),
    Attribute("grid_origin", "uint3", "uint3(0u)"),
    _triple("grid_size", "grid"),
    _scalar("quadgroup_index_in_threadgroup", "at.index / 4"),
    _scalar("quadgroups_per_threadgroup", "at.simdgroups * 8"),
    _scalar("simdgroup_index_in_threadgroup", "at.simdgroup"),
    _scalar("simdgroups_per_threadgroup", "at.simdgroups"),
    _scalar("thread_execution_width", "metalhost::LANES"),
    _scalar("thread_index_in_quadgroup", "at.lane % 4"),
    _scalar("thread_index_in_simdgroup", "at.lane"),
    _scalar("thread_index_in_threadgroup", "at.index"),
    _triple("thread_position_in_grid", "in_grid"),
    _triple("thread_position_in_threadgroup", "in_group"),
    _triple("threadgroup_position_in_grid", "group"),
    _triple("threadgroups_per_grid", "groups"),
    _triple("threads_per_grid", "grid"),
    _scalar("threads_per_simdgroup", "metalhost::LANES"),
    _triple("threads_per_threadgroup", "group_size"),
)
