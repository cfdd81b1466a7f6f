"""Make a Qwen3.5 or Qwen3-Next checkpoint with random weights, to try and to measure them.

    uv run python tools/random_checkpoint.py TARGET [--shape 0.8b] [--files mlx] [--bits 4]

The checkpoint has pico's tokenizer and a chat template with XML function calls. Its answers are
random tokens.
"""

import argparse
from pathlib import Path

import mlx.core as mx
from tinyllm_ops import QuantizationMode
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.testing import SHAPES, hybrid_checkpoint

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
FLOAT_GROUPS = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}


def main() -> None:
    """Write the checkpoint that the command line describes."""
    parser = argparse.ArgumentParser(prog="random_checkpoint", description=__doc__)
    parser.add_argument("target", type=Path, help="the folder to make")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="default: tiny")
    parser.add_argument(
        "--files",
        choices=("hf", "mlx"),
        default="hf",
        help="the kind of files: Hugging Face, with a vision tower, or MLX; default: hf",
    )
    parser.add_argument("--bits", type=int, help="quantize to so many bits, in files of MLX")
    parser.add_argument("--group-size", type=int, help="default: 64")
    parser.add_argument("--mode", choices=("affine", *FLOAT_GROUPS), default="affine")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        packed = packed_format(options.mode, options.bits, options.group_size)
        if packed is not None and options.files == "hf":
            raise ValueError("--bits, --mode: expected --files mlx: only these are quantized")
        hybrid_checkpoint(
            options.target,
            SHAPES[options.shape],
            files=options.files,
            packed=packed,
            dtype=DTYPES[options.dtype],
            seed=options.seed,
        )
    except FileExistsError:
        parser.error(f"{options.target} exists: name a new folder")
    except (OSError, ValueError, RuntimeError) as error:
        parser.error(str(error))
    print(f"uv run chat --model {options.target}")


def packed_format(
    mode: QuantizationMode, bits: int | None, group_size: int | None
) -> PackedFormat | None:
    """Return the format that the options name, or None for no quantization."""
    if mode == "affine":
        if bits is None and group_size is not None:
            raise ValueError("--group-size: expected --bits, or a --mode of floats, got neither")
        return None if bits is None else PackedFormat(group_size=group_size or 64, bits=bits)
    groups, width = FLOAT_GROUPS[mode]
    if bits not in (None, width) or group_size not in (None, groups):
        raise ValueError(f"--bits, --group-size: expected {width} and {groups} with --mode {mode}")
    return PackedFormat(group_size=groups, bits=width, mode=mode)


if __name__ == "__main__":
    main()
