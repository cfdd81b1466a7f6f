"""The command line of `chat`."""

import os
import select
import sys
import warnings
from typing import TYPE_CHECKING, Annotated

import typer

from tinyllm_chat.errors import UsageError, one_line
from tinyllm_chat.settings import MAX_TOKENS, Settings
from tinyllm_chat.terminal.output import Terminal

if TYPE_CHECKING:
    from tinyllm_chat.one_shot import ReadBytes

USAGE, FAILURE = 2, 1
STDIN_PATIENCE = 2.0
"""Seconds to wait for text on stdin before a notice says that `chat` is waiting."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def main(program: str = "chat") -> int:
    """Run `chat` and return its exit code: 0, 2 for usage, 130 after Ctrl-C, 1 otherwise.

    The code is also 0 if the reader of a pipe closes the pipe early.

    Args:
        program: the name of the command in its help.
    """
    _replace_closed_streams()
    terminal = Terminal.standard()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_place: terminal.notice(str(message))
            return int(app(prog_name=program, standalone_mode=False) or 0)
    except typer.TyperException as error:
        terminal.notice(f"{' '.join(error.format_message().split())} (see {program} --help)")
        return USAGE
    except UsageError as error:
        terminal.notice(one_line(error))
        return USAGE
    except (ValueError, RuntimeError, OSError) as error:
        terminal.notice(one_line(error))
        return FAILURE
    except SystemExit as error:
        # typer turns the error of a closed pipe into this one, with code 1.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return 0


@app.command()
def chat(
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="Answer this question and exit."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON record instead of the answer.")
    ] = False,
    model: Annotated[
        str,
        typer.Option(metavar="ID", help="A folder, owner/name on the Hugging Face Hub, or pico."),
    ] = "pico",
    revision: Annotated[
        str | None, typer.Option(metavar="REV", help="Branch, tag or commit on the Hub.")
    ] = None,
    ops: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cpu-int8|metal|mlx|reference", help="The implementation of the maths."
        ),
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            metavar="auto|float32|float16|bfloat16",
            help="The dtype of the arithmetic. auto is the checkpoint's own, but float32 for mlx "
            "on a CPU.",
        ),
    ] = "auto",
    split: Annotated[
        str,
        typer.Option(
            metavar="heads|layers|N,N",
            help="The division of the model among several processes: heads of all layers, layers, "
            "or N layers each.",
        ),
    ] = "heads",
    system: Annotated[
        str | None,
        typer.Option("--system-prompt", "--system", metavar="TEXT", help="The system message."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The most tokens of an answer, thinking included.  "
            f"[default: {MAX_TOKENS}, with --server that of the server]",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", "--temp", metavar="T", help="The sampling temperature; 0 is greedy."
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Choose from the K likeliest tokens; 0: all.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Choose from the likeliest tokens of total probability P."),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Choose from tokens at least P times as likely as the top."),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(metavar="R", help="Above 1: repeat less.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The same seed gives the same answers.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End answers before this text; may be repeated."),
    ] = None,
    kv_bits: Annotated[
        int | None, typer.Option(metavar="4|8", help="Quantize cached keys and values.")
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", "--max-context", metavar="N", help="Limit the context."),
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(
            metavar="mtp",
            help="Decode with draft tokens from the checkpoint's draft head (Qwen3.5); the text "
            "stays the same.",
        ),
    ] = None,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Draft tokens of a step. [default: 2 with --draft-model]"),
    ] = None,
    no_think: Annotated[
        bool, typer.Option("--no-think", help="Ask the model to answer without thinking.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            "--url",
            metavar="URL",
            help="Chat with the model of a running `serve`; load no model here.",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The API key of the server.  [env var: TINYLLM_API_KEY]"),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    """Chat with a Qwen model; a small one, pico, is built in.

    On a terminal, hold a conversation (/help lists its commands). With --prompt, or with text on
    stdin, answer once: the text of stdin follows the prompt after a blank line. Only answers go to
    stdout; thinking, statistics and notices go to stderr. Sampling options default to the
    checkpoint's generation_config.json. Exit codes: 0; 2 for usage; 130 after Ctrl-C; 1 otherwise.
    """
    if server is not None and api_key is None:
        # Not read by typer: without --server the option is wrong, and the variable is ignored,
        # because a shell may export it for `serve`.
        api_key = os.environ.get("TINYLLM_API_KEY") or None
    settings = Settings(
        model=model,
        revision=revision,
        ops=ops,
        dtype=dtype,
        split=split,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
        kv_bits=kv_bits,
        max_model_len=max_model_len,
        draft_model=draft_model,
        num_speculative_tokens=num_speculative_tokens,
        enable_thinking=False if no_think else None,
        server=server,
        api_key=api_key,
    )
    try:
        if version:
            _print_version()
        else:
            _start(settings, prompt, as_json=as_json)
    except BrokenPipeError:
        # Caught here, because typer would report a failure. Python flushes both streams once more
        # at exit, which would raise again.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 0


def _print_version() -> None:
    from importlib.metadata import version  # imported here, because it takes 20 ms

    typer.echo(f"chat {version('tinyllm-chat')}")


def _replace_closed_streams() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise the next opened file gets the descriptor of a closed stream, and MLX treats
    descriptor 0 as an error.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))


def _start(settings: Settings, prompt: str | None, *, as_json: bool) -> None:
    """Answer once, hold a conversation, or run as a worker of rank 0."""
    # Imported here, because --help and usage errors do not need MLX.
    from tinyllm_qwen.parallel.member import is_launched

    from tinyllm_chat import one_shot
    from tinyllm_chat.local import ranks

    terminal = Terminal.standard()
    with ranks.join_ranks(settings, terminal) as member:
        if member is not None and not member.is_driver:
            ranks.run_worker(settings, terminal, member)
            return
        # A launcher never closes its pipe. Each line of the pipe is one question.
        read_stdin = None if is_launched() else _stdin_reader(terminal)
        if prompt is not None or read_stdin is not None:
            question = one_shot.read_question(prompt, read_stdin, terminal)
            one_shot.run(settings, question, terminal, as_json=as_json, member=member)
            return
        if as_json:
            raise UsageError("--json: expected --prompt TEXT or text on stdin as well")
        # Imported here, because a single question does not need prompt_toolkit.
        from tinyllm_chat import repl

        repl.run(settings, terminal, member)


def _stdin_reader(terminal: Terminal) -> "ReadBytes | None":
    """Return the `read` of stdin, or None if stdin is a terminal.

    Some scripts leave stdin open and write nothing. After `STDIN_PATIENCE` seconds a notice says
    that `chat` is waiting.
    """
    if sys.stdin.isatty():
        return None
    if not select.select([sys.stdin], [], [], STDIN_PATIENCE)[0]:
        terminal.notice("waiting for text on stdin: close it, or use </dev/null for none")
    return sys.stdin.buffer.read
