"""Parts of a measurement, each a run of `bench`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tinyllm_cli.messages import UsageError

_QWEN = "--shape qwen3-0.6b --dtype bfloat16"
_MODEL = f"model {_QWEN} --ops cpu --decode-tokens 64"
_LLAMA, _OPENVINO = "--peers --peer llama.cpp", "--peers --peer openvino"
_PEERS = f"{_LLAMA} --peer openvino"
# One of each kind of processor, beside the fastest of the machine.
_OTHER_ISAS = ("avx512vnni", "avxvnni", "avx2")


@dataclass(frozen=True)
class Part:
    """A run of `bench` with one instruction set."""

    name: str  # the instruction set and the case
    isa: str
    arguments: str  # of `bench`, without --json
    environment: dict[str, str] = field(default_factory=dict)
    # Cores of each process. Several processes run at the same time.
    pinned: tuple[tuple[int, ...], ...] = ()


def all_parts(isas: Sequence[str]) -> list[Part]:
    """Return the parts for the fastest instruction set, and for common ones below it."""
    fastest = isas[0]
    found = []
    for isa in (fastest, *(each for each in _OTHER_ISAS if each in isas[1:])):
        # OpenVINO chooses its own instruction set, so it is measured beside the fastest alone.
        peers = _PEERS if isa == fastest else _LLAMA
        # This backend is for weights of 4 and 8 bits with scales of 16 bits.
        programs = f"--ops cpu-int8 {peers}"
        model = f"{_MODEL} {programs} --seconds {0.3 if isa == fastest else 0.2}"
        # With AVX2, this prompt takes three seconds, and the first sample is cold.
        empty = f"--seconds {0.6 if isa == 'amx' else 2} --prompt-tokens 512 --context 0"
        cases = {
            "prompt-512": f"{_MODEL} {programs} {empty}",
            "prompt-128": f"{model} --prompt-tokens 128 --context 512",
            "prompt-16": f"{model} --prompt-tokens 16 --context 2048",
            "pico": f"model --ops cpu {peers} --seconds 0.1",
            "engine": f"engine {_QWEN} --ops cpu --rounds 2 --tokens 48",
            "engine-int8": f"engine {_QWEN} --ops cpu-int8 --rounds 2 --tokens 48",
        }
        if isa != "avx2":
            # llama.cpp takes half a minute for this prompt, which is its only sample.
            cases["prompt-4096"] = f"{model} --prompt-tokens 4096 --context 0"
        if isa == fastest:
            cases["engine"] += " --prompt 4096"
            # llama.cpp takes two minutes to compute this context. Others need not compute it.
            context = "--prompt-tokens 512 --context 8192"
            # The first token takes some seconds and would be the only sample.
            cases["after-8192"] = f"{_MODEL} {_OPENVINO} --seconds 1 {context}"
            cases["8-bit"] = f"{_MODEL} {programs} {empty} --bits 8"
            cases["bfloat16"] = f"{_MODEL} {peers} {empty} --bits 16"
            cases["mxfp4"] = f"{_MODEL} {_LLAMA} {empty} --mode mxfp4"
        found += [Part(f"{isa}/{case}", isa, arguments) for case, arguments in cases.items()]
    alone = f"{_MODEL} --seconds {0.3 if fastest == 'amx' else 2} --prompt-tokens 512 --context 0"
    one = {"TINYLLM_NUM_THREADS": "1"}
    found.append(Part(f"{fastest}/one-thread", fastest, alone, one))
    found.append(Part(f"{fastest}/two-processes", fastest, alone, one, ((0,), (1,))))
    return found


def choose_parts(isas: Sequence[str], chosen: Sequence[str], named: Sequence[str]) -> list[Part]:
    """Return the parts of some instruction sets, or those that are named.

    Raises:
        UsageError: if this machine has no such part.
    """
    parts = all_parts(isas)
    names, found = [part.name for part in parts], {part.isa for part in parts}
    for name in named:
        if name not in names:
            raise UsageError(f"--part: expected one of {', '.join(names)}, got {name}")
    for isa in chosen:
        if isa not in found:
            raise UsageError(f"--isa: expected one of {', '.join(sorted(found))}, got {isa}")
    return [
        part
        for part in parts
        if (not named or part.name in named) and (not chosen or part.isa in chosen)
    ]
