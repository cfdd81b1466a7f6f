"""The command line: `serve`."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinyllm_serve.errors import UsageError

if TYPE_CHECKING:
    from tinyllm_serve.group import Group
    from tinyllm_serve.settings import Settings

USAGE, FAILURE = 2, 1

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def main() -> int:
    """Run `serve` and give its exit code: 0 after a signal, 2 for usage, 1 otherwise."""
    try:
        return int(app(prog_name="serve", standalone_mode=False) or 0)
    except (typer.TyperException, UsageError) as error:
        text = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        _notice(f"{text} (see serve --help)")
        return USAGE
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        _notice(str(error) or type(error).__name__)
        return FAILURE


@app.command()
def serve(
    model: Annotated[
        str,
        typer.Option(metavar="ID", help="A folder, owner/name on the Hugging Face Hub, or pico."),
    ] = "pico",
    revision: Annotated[
        str | None, typer.Option(metavar="REV", help="Branch, tag or commit on the Hub.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How clients call it; the last part of ID unless given."),
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
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 is every network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="0 lets the system choose.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            envvar="TINYLLM_API_KEY",
            help="Clients must send it; may be repeated. In the environment others cannot see it.",
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="A web page that may ask; may be repeated."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="By which clients may ask for it; may be repeated."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="Of an answer, where the client does not say.")
    ] = 4096,
    max_body: Annotated[
        int, typer.Option(metavar="BYTES", help="Of a request at most.")
    ] = 10_000_000,
    max_running: Annotated[
        int, typer.Option(metavar="N", help="Requests that are computed at a time.")
    ] = 32,
    max_waiting: Annotated[
        int, typer.Option(metavar="N", help="Requests that may wait; one more gets a 429.")
    ] = 256,
    memory: Annotated[
        float | None,
        typer.Option(metavar="GB", help="For keys and values; unless given, what is needed."),
    ] = None,
    kv_bits: Annotated[
        int | None, typer.Option(metavar="4|8", help="Quantize keys and values.")
    ] = None,
    page_size: Annotated[
        int, typer.Option(metavar="N", help="Tokens that a page of keys and values holds.")
    ] = 32,
    prefill_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens of prompts that a step computes at most.")
    ] = 512,
    step_seconds: Annotated[
        float,
        typer.Option(metavar="S", help="That prompts may keep those waiting who are answered."),
    ] = 0.25,
    no_prefix_cache: Annotated[
        bool, typer.Option("--no-prefix-cache", help="Compute each prompt from its beginning.")
    ] = False,
    prefix_memory: Annotated[
        float | None,
        typer.Option(metavar="GB", help="For beginnings that nobody uses now; unless given, all."),
    ] = None,
    prefix_path: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keeps beginnings of prompts over a restart."),
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(metavar="ID", help="A smaller model that guesses ahead; as --model."),
    ] = None,
    speculation: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Guess up to N tokens ahead; the text stays the same. "
            "[default: 4 with --draft-model, otherwise 0]",
        ),
    ] = None,
    keep_alive: Annotated[
        float, typer.Option(metavar="S", help="Seconds of silence until a stream says it is alive.")
    ] = 10.0,
    drain: Annotated[
        float, typer.Option(metavar="S", help="Seconds that running answers have after SIGTERM.")
    ] = 30.0,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run copies of the model on Ray Serve; see --replicas.")
    ] = False,
    replicas: Annotated[
        str | None,
        typer.Option(metavar="N|N-M", help="How many copies; of a range, as many as are needed."),
    ] = None,
    affinity: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="A copy may have N requests more than others and still get those whose beginning "
            "it has; 0 shares evenly. [default: 8]",
        ),
    ] = None,
    update: Annotated[
        bool,
        typer.Option("--update", help="Replace the copies of the 'serve --ray' that runs."),
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    """Serve a Qwen model to OpenAI's clients; a small one, pico, is built in.

    Listens on this machine alone unless --host says otherwise. The log goes to stderr, a JSON
    object a line, without a word of any conversation. Ctrl-C or SIGTERM ends it once the answers
    under way are done, a second one at once. Exit codes: 0; 2 for usage; 1 otherwise.
    """
    if version:
        from importlib.metadata import version as version_of  # 20 ms, for this option alone

        typer.echo(f"serve {version_of('tinyllm-serve')}")
        return 0
    if ray:
        from tinyllm_serve.replicas.environment import prepare_environment

        prepare_environment()
    elif replicas is not None or affinity is not None or update:
        raise UsageError("--replicas, --affinity, --update: expected --ray with them")
    from tinyllm_serve import group  # with MLX, which --help can do without
    from tinyllm_serve.json_log import begin_log
    from tinyllm_serve.settings import Settings

    settings = Settings(
        model=model,
        revision=revision,
        name=name,
        ops=ops,
        dtype=dtype,
        split=split,
        host=host,
        port=port,
        api_keys=tuple(api_key or ()),
        cors_origins=tuple(cors_origin or ()),
        allowed_hosts=tuple(allowed_host or ()),
        max_tokens=max_tokens,
        max_body=max_body,
        max_running=max_running,
        max_waiting=max_waiting,
        memory=_bytes("--memory", memory),
        kv_bits=kv_bits,
        page_size=page_size,
        prefill_tokens=prefill_tokens,
        step_seconds=step_seconds,
        prefix_cache=not no_prefix_cache,
        prefix_memory=_bytes("--prefix-memory", prefix_memory),
        prefix_path=prefix_path,
        draft_model=draft_model,
        speculation=speculation,
        keep_alive=keep_alive,
        drain=drain,
    )
    begin_log()
    if ray:
        from tinyllm_serve.replica_options import AFFINITY, ReplicaOptions
        from tinyllm_serve.replicas.run import run_replicas  # with Ray, which is an extra

        group.check_alone("--ray")
        copies = ReplicaOptions.parse(replicas or "1", AFFINITY if affinity is None else affinity)
        run_replicas(settings, copies, update=update)
        return 0
    with group.joined(settings) as several:
        if several is not None and not several.member.is_driver:
            group.work(settings, several.member)
        else:
            asyncio.run(_serve(settings, several))
    return 0


async def _serve(settings: "Settings", group: "Group | None") -> None:
    """Serve a model that is in this process, or the part of it that leads."""
    from tinyllm_serve.application import make_application
    from tinyllm_serve.server import serve as run
    from tinyllm_serve.service import Service

    service = Service(settings, group)
    await run(settings, service, make_application(service))


def _bytes(option: str, gigabytes: float | None) -> int | None:
    if gigabytes is None:
        return None
    if not 0 <= gigabytes < 1e9:  # nor infinite, nor NaN
        raise UsageError(f"{option}: expected gigabytes, got {gigabytes}")
    return int(gigabytes * 1e9)


def _notice(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"serve: {' '.join(text.split())}\n")
