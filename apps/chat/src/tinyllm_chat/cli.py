"""The command line: `chat`."""

import os
import select
import sys
from typing import Annotated

import typer

from tinyllm_chat.errors import UsageError, one_line
from tinyllm_chat.question import Source, read_question
from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal import Terminal

USAGE, FAILURE = 2, 1
SILENCE = 2.0  # seconds

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def main() -> int:
    """Run `chat` and give its exit code: 0, 2 for usage, 130 after Ctrl-C, 1 otherwise.

    A reader that closes the pipe early has what it wanted: 0.
    """
    _open_streams()
    terminal = Terminal.standard()
    try:
        return int(app(prog_name="chat", standalone_mode=False) or 0)
    except typer.TyperException as error:
        terminal.notice(f"{' '.join(error.format_message().split())} (see chat --help)")
        return USAGE
    except UsageError as error:
        terminal.notice(one_line(error))
        return USAGE
    except (ValueError, RuntimeError, OSError) as error:
        terminal.notice(one_line(error))
        return FAILURE


@app.command()
def chat(
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="Ask this, print the answer, leave."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one record of JSON instead of the answer.")
    ] = False,
    model: Annotated[
        str,
        typer.Option(metavar="ID", help="A folder, owner/name on the Hugging Face Hub, or pico."),
    ] = "pico",
    revision: Annotated[
        str | None, typer.Option(metavar="REV", help="Branch, tag or commit on the Hub.")
    ] = None,
    ops: Annotated[
        str, typer.Option(metavar="auto|cpu|metal|mlx|reference", help="Which maths computes.")
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            metavar="auto|float32|float16|bfloat16",
            help="Of the arithmetic; auto is the checkpoint's own, but float32 for mlx on a CPU.",
        ),
    ] = "auto",
    split: Annotated[
        str,
        typer.Option(
            metavar="heads|layers|N,N",
            help="What each of several processes has: heads of all layers, or layers, N each.",
        ),
    ] = "heads",
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")] = None,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="The longest answer, thinking included.")
    ] = 4096,
    temp: Annotated[
        float | None, typer.Option(metavar="T", help="Temperature; 0 takes the likeliest token.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Choose from the K likeliest tokens; 0: all.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="Choose from the likeliest of mass P.")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Choose from tokens at least P times the likeliest."),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(metavar="R", help="Above 1: repeat less.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Same seed, same answers.")] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End answers before this; may be repeated."),
    ] = None,
    kv_bits: Annotated[
        int | None, typer.Option(metavar="4|8", help="Quantize cached keys and values.")
    ] = None,
    max_context: Annotated[
        int | None, typer.Option(metavar="N", help="Bound the context, in tokens.")
    ] = None,
    no_think: Annotated[
        bool, typer.Option("--no-think", help="Ask the model to answer without thinking.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Talk to the model of a running `serve`; load none."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", envvar="TINYLLM_API_KEY", help="What the server wants to see."),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    """Talk to a Qwen model; a small one, pico, is built in.

    On a terminal this is a conversation (/help lists its commands). With --prompt, or with text on
    stdin, it answers once: stdin's text follows the prompt after a blank line. The answer alone
    goes to stdout; thinking, figures and notices go to stderr. How tokens are chosen is the
    checkpoint's advice unless an option says otherwise. Exit codes: 0; 2 for usage; 130 after
    Ctrl-C; 1 otherwise.
    """
    settings = Settings(
        model=model,
        revision=revision,
        ops=ops,
        dtype=dtype,
        split=split,
        system=system,
        max_tokens=max_tokens,
        temperature=temp,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
        kv_bits=kv_bits,
        max_context=max_context,
        think=False if no_think else None,
        server=server,
        api_key=api_key,
    )
    try:
        if version:
            _print_version()
        else:
            _start(settings, prompt, as_json=as_json)
    except BrokenPipeError:
        # Caught here, since typer would make it a failure. Python flushes both streams once more
        # when it exits, and would complain.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 0


def _print_version() -> None:
    from importlib.metadata import version  # 20 ms, for this option alone

    typer.echo(f"chat {version('tinyllm-chat')}")


def _open_streams() -> None:
    """Stand-ins for standard streams that whoever started the process has closed.

    The next file to be opened would get a free number, and MLX takes number 0 for a failure.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))


def _start(settings: Settings, prompt: str | None, *, as_json: bool) -> None:
    """Answer once or begin a conversation, or compute as a worker of the rank that does."""
    from tinyllm_qwen.parallel.member import is_launched  # with MLX, which --help can do without

    from tinyllm_chat import group  # as well

    terminal = Terminal.standard()
    with group.joined(settings, terminal) as member:
        if member is not None and not member.is_driver:
            group.work(settings, terminal, member)
            return
        # A launcher's pipe never ends: what comes through it is a conversation, not a text.
        piped = None if is_launched() else _piped(terminal)
        if prompt is None and piped is None:
            if as_json:
                raise UsageError("--json: expected --prompt TEXT or text on stdin beside it")
            from tinyllm_chat import repl  # with prompt_toolkit, which one question can do without

            repl.run(settings, terminal, member)
            return
        question = read_question(prompt, piped, terminal)
        from tinyllm_chat import one_shot  # as the others

        one_shot.run(settings, question, terminal, as_json=as_json, member=member)


def _piped(terminal: Terminal) -> Source | None:
    """Stdin, unless it is a terminal.

    Scripts leave pipes open that nobody writes to: after a while of silence a notice says what
    is being waited for.
    """
    if sys.stdin.isatty():
        return None
    if not select.select([sys.stdin], [], [], SILENCE)[0]:
        terminal.notice("waiting for text on stdin: end it, or give </dev/null for none")
    return sys.stdin.buffer
