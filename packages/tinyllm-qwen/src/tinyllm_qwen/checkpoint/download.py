"""Downloads from the Hugging Face Hub, in a process that ends with the wait for it.

The threads of the Hub's client complete their files even if the thread that waits for them is
interrupted. After Ctrl-C, a file of 5 GB would be downloaded for minutes.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from threading import Thread

from tinyllm_qwen.errors import HubError


def fetch(repository: str, revision: str | None) -> Path:
    """Return the folder of a repository in the Hub's cache, after downloading missing files.

    Ctrl-C, or any other exception in this thread, ends the download at once. Complete files are
    kept.

    Args:
        repository: owner/name.
        revision: the branch, tag or commit; None for the default branch.

    Raises:
        HubError: if the repository cannot be fetched. The message has the reason and a remedy.
    """
    program = f"from {__name__} import main; main()"
    command = [sys.executable, "-P", "-c", program, repository]
    if revision is not None:
        command.append(revision)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            answer = process.stdout.read()
        finally:
            process.stdin.close()  # ends the process: see `_end_with_caller`
    if not answer:
        raise HubError(
            f"{repository} could not be fetched (the process of the download ended with "
            f"{process.returncode}): run it again; complete files are kept"
        )
    result = json.loads(answer)
    if "error" in result:
        raise HubError(result["error"])
    return Path(result["folder"])


def main() -> None:
    """Fetch the repository that the arguments name, and write the result to stdout as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the caller decides
    if sys.stderr is None:  # it was closed; the client writes its progress there
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    # Import here, because the import of the Hub's client takes 0.5 s, and callers do not need it.
    from tinyllm_qwen.checkpoint.repository import fetch as download
    from tinyllm_qwen.checkpoint.repository import partial_files

    name, revision = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    before = partial_files(name)
    Thread(target=lambda: _end_with_caller(name, before), daemon=True).start()
    try:
        with redirect_stdout(sys.stderr):
            result = {"folder": str(download(name, revision))}
    except HubError as error:
        result = {"error": str(error)}
    sys.stdout.write(json.dumps(result))


def _end_with_caller(name: str, before: set[Path]) -> None:
    """Wait until the caller closes stdin or ends; then remove partial files, and end."""
    from tinyllm_qwen.checkpoint.repository import partial_files

    while os.read(0, 1):  # no lock is held, unlike in `sys.stdin`, when the interpreter ends
        pass
    for path in partial_files(name) - before:
        path.unlink(missing_ok=True)
    os._exit(1)
