"""The options of the command line."""

from dataclasses import dataclass
from typing import Annotated

from tinyllm_cli.program import version_option
from typer import Argument, Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """All options of `convert`. Typer reads the command line from these fields."""

    source: Annotated[
        str,
        Argument(
            metavar="SOURCE",
            help="An unquantized checkpoint: a folder, or owner/name on the Hugging Face Hub.",
        ),
    ]
    target: Annotated[
        str, Argument(metavar="TARGET", help="The new folder; an existing one must be empty.")
    ]
    bits: Annotated[
        int | None, Option("--bits", "--q-bits", metavar="2|3|4|5|6|8", help="Bits of a code.")
    ] = None
    group_size: Annotated[
        int | None,
        Option(
            "--group-size",
            "--q-group-size",
            metavar="32|64|128",
            help="The number of weights that share a scale.  [default: 64]",
        ),
    ] = None
    mode: Annotated[
        str | None,
        Option(
            "--mode",
            "--q-mode",
            metavar="affine|mxfp4|mxfp8|nvfp4",
            help="affine is integer codes; the others are floating-point codes, which fix --bits "
            "and --group-size.  [default: affine]",
        ),
    ] = None
    dtype: Annotated[
        str | None,
        Option(
            metavar="float32|float16|bfloat16",
            help="The dtype of unquantized tensors.  [default: the source's own]",
        ),
    ] = None
    skip: Annotated[
        list[str] | None,
        Option(
            metavar="PATTERN",
            help="Leave matrices unquantized: lm_head, '*.v_proj', ...; may be repeated.",
        ),
    ] = None
    revision: Annotated[
        str | None, Option(metavar="REV", help="Branch, tag or commit on the Hub.")
    ] = None
    shard_size: Annotated[float, Option(metavar="GB", help="The largest size of a file.")] = 5.0
    version: Annotated[bool, version_option("convert")] = False
