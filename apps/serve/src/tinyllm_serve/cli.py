"""The command line of `serve`."""

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING, NoReturn

from tinyllm_cli.messages import notice
from tinyllm_cli.program import new_app, run_program

from tinyllm_serve.errors import ServeError
from tinyllm_serve.options import REMEDIES
from tinyllm_serve.ranks.launcher import launcher_pipe
from tinyllm_serve.settings import Settings
from tinyllm_serve.signals import ENDING, OF_TERMINAL

if TYPE_CHECKING:
    from tinyllm_serve.ranks.group import Group

_HELP = """Serve a Qwen model through OpenAI's and Anthropic's APIs. A small one, pico, is built in.

The server listens on this machine alone, unless --host names another address. The log goes to
stderr, one JSON object a line, without the text of any conversation. Ctrl-C or SIGTERM ends the
server once running answers are complete; a second signal ends it at once. Exit codes: 0 after a
signal, 2 for usage errors, 1 otherwise.
"""

app = new_app()
app.command(name="serve", help=_HELP)(Settings)


def run_process(program: str = "serve") -> NoReturn:
    """Run `main` as the main function of a process."""
    # Exit at once on a signal until `Signals` takes over. Libraries are imported meanwhile: some
    # catch a KeyboardInterrupt, and C++ libraries abort the process.
    numbers = (*ENDING, *OF_TERMINAL)
    heeded = [each for each in numbers if signal.getsignal(each) != signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, lambda _number, _frame: os._exit(0))
    code = main(program)
    # The process ends: a signal in the interpreter's own exit would end it with another exit code.
    for number in heeded:
        signal.signal(number, signal.SIG_IGN)
    if any(thread.name == "engine" for thread in threading.enumerate()):
        # Neither the load of a model nor a step can be interrupted. MLX computes in that thread,
        # and an ordinary exit destroys MLX's static objects first: the process would abort.
        os._exit(code)
    raise SystemExit(code)


def main(program: str = "serve") -> int:
    """Run `serve`, under this name in its help, and return its exit code; see `run_program`.

    Ctrl-C is handled by `Signals` and `run_process`, so the exit code is then 0 and not 130.
    """

    def work(settings: Settings) -> None:
        try:
            run(settings)
        except BrokenPipeError as error:
            # The server writes nothing to stdout, so this is a connection to another process. It
            # is a failure, unlike the closed pipe that `run_program` expects.
            raise ServeError(str(error)) from error

    return run_program(
        app, program, work, say=lambda text: notice(text, "serve"), remedies=REMEDIES
    )


def run(settings: Settings) -> None:
    """Serve until a signal comes. Raises the errors of `serve`, `run_replicas` and `joined`."""
    launcher = launcher_pipe()  # early: the launcher may end before the ranks have joined
    if settings.ray:
        from tinyllm_serve.replicas.local_settings import prepare_environment

        prepare_environment()  # before anything imports Ray
    from tinyllm_serve.http.malloc import return_large_blocks
    from tinyllm_serve.json_log import configure_log
    from tinyllm_serve.ranks import group  # imports MLX, which --help does not need

    configure_log()
    return_large_blocks()
    if settings.ray:
        from tinyllm_serve.replicas.front import run_replicas  # imports Ray, which is an extra

        group.check_alone("--ray")
        run_replicas(settings)
        return
    with group.joined(settings) as joined:
        if joined is not None and not joined.member.is_driver:
            group.work(settings, joined.member)
        else:
            asyncio.run(_serve(settings, joined, launcher))


async def _serve(settings: Settings, group: "Group | None", launcher: int | None) -> None:
    """Serve a model in this process, or as the driver of a group."""
    from tinyllm_serve.application import make_application
    from tinyllm_serve.server import serve
    from tinyllm_serve.service import Service

    service = Service(settings, group)
    await serve(settings, service, make_application(service), launcher=launcher)
