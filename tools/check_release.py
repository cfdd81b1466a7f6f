"""Installs built wheels into an empty environment without a compiler, and runs the programs.

    uv run --no-sync python tools/check_release.py dist --python 3.12

`dist` holds the wheels of all members. On Linux the native kernels must be used.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

START_SECONDS = 60
QUESTION = "what does rmsnorm do?"
EXPECTED = "root mean square"


def install(wheels: Path, python: str, place: Path) -> Path:
    """Make an environment, install all commands from wheels, and return its folder of programs."""
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("uv is not on the PATH: install it with `pip install uv`")
    programs = place / "bin"
    environ = os.environ | {"PATH": str(programs)}  # no compiler
    subprocess.run([uv, "venv", "--quiet", "--seed", "--python", python, place], check=True)
    command = [str(programs / "python"), "-m", "pip", "install", "--quiet"]
    command += ["--only-binary", ":all:", "--find-links", str(wheels), "tinyllm-cli[all,cpu]"]
    subprocess.run(command, check=True, env=environ)
    return programs


class Programs:
    """The commands of an environment, which see no other programs."""

    def __init__(self, folder: Path, home: Path) -> None:
        """Take the folder of the commands, and an empty home folder."""
        self._environ = {"PATH": str(folder), "HOME": str(home), "HF_HUB_OFFLINE": "1"}
        self._tinyllm = str(folder / "tinyllm")

    def output(self, *words: str) -> str:
        """Return what `tinyllm` writes to stdout; exit if it fails."""
        command = [self._tinyllm, *words]
        done = subprocess.run(
            command, env=self._environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
        )
        return done.stdout.decode()

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start `tinyllm` in the background."""
        return subprocess.Popen(
            [self._tinyllm, *words], env=self._environ, stderr=subprocess.DEVNULL
        )


def check_chat(programs: Programs) -> str:
    """Ask pico, and return the answer's speed in words."""
    record = json.loads(programs.output("chat", "--prompt", QUESTION, "--json"))
    if EXPECTED not in record["answer"]:
        sys.exit(f"chat: expected {EXPECTED!r} in the answer, got {record['answer']!r}")
    if sys.platform == "linux" and record["ops"] != "cpu":
        sys.exit(f"chat: expected the native kernels, got the ops {record['ops']}")
    return f"{record['ops']} ops, {record['timings']['decode_rate']:,.0f} tokens/s"


def check_serve(programs: Programs) -> None:
    """Start a server, ask it, and end it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = programs.start("serve", "--port", str(port))
    try:
        answer = _ask(f"http://127.0.0.1:{port}/v1/chat/completions", server)
    finally:
        server.send_signal(signal.SIGTERM)
    code = server.wait(timeout=START_SECONDS)
    if EXPECTED not in answer or code != 0:
        sys.exit(f"serve: expected {EXPECTED!r} and exit code 0, got {answer!r} and {code}")


def _ask(url: str, server: "subprocess.Popen[bytes]") -> str:
    """Return the answer of a server that may not listen yet."""
    messages = [{"role": "user", "content": QUESTION}]
    body = json.dumps({"model": "pico", "messages": messages}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=START_SECONDS) as response:
                answer: str = json.load(response)["choices"][0]["message"]["content"]
                return answer
        except (urllib.error.URLError, ConnectionError):
            if server.poll() is not None or time.monotonic() > until:
                sys.exit("serve: expected an answer, got none: run `tinyllm serve` by hand")
            time.sleep(0.2)


def check_kernels(python: Path, wheels: Path) -> None:
    """Run the tests of the kernels on the installed wheel, without the exhaustive ones."""
    needed = ["metalhost", "tinyllm-layers[testing]", "beartype", "hypothesis", "pytest"]
    install_more = ["uv", "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*install_more, "--find-links", str(wheels), *needed], check=True)
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-m",
        "not exhaustive",
        "packages/tinyllm-kernels",
    ]
    subprocess.run(command, check=True, cwd=Path(__file__).resolve().parents[1])


def main() -> None:
    """Check the wheels with one version of Python."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheels", type=Path, help="the folder of the wheels")
    parser.add_argument("--python", default=sys.executable, help="a version or a program")
    parser.add_argument("--tests", action="store_true", help="run the tests of the kernels too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place, home = Path(folder) / "venv", Path(folder) / "home"
        home.mkdir()
        programs = Programs(install(options.wheels.resolve(), options.python, place), home)
        print(programs.output("--version").strip(), f"Python {options.python}", sep=", ")
        print(f"chat: {check_chat(programs)}")
        check_serve(programs)
        print("serve: answered")
        programs.output("bench", "model", "--seconds", "0.05", "--json")
        print("bench: ran")
        print(f"models: {programs.output('models').strip()}", flush=True)
        if options.tests:
            check_kernels(place / "bin" / "python", options.wheels.resolve())


if __name__ == "__main__":
    main()
