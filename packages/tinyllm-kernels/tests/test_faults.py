"""The extension under faults of its host: fork, failed allocations, floating-point modes, affinity.

Each test runs a new process, because the faults change the whole process.
"""

import os
import platform
import subprocess
import sys

import pytest
from tinyllm_kernels import available

pytestmark = [
    pytest.mark.skipif(not available()[0].present, reason="no native backend"),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux's own calls"),
]

PRELUDE = """
import ctypes, os, re, resource, signal, threading
import mlx.core as mx
from tinyllm_kernels import opset, _cpu as native
from tinyllm_kernels.testing import LayerShape, make_batches, make_caches, make_input, make_layers
from tinyllm_layers import make_stack
from tinyllm_ops import quantize
from tinyllm_ops.testing import normal

ops = opset("cpu")

def forward():
    # Returns the output of two layers over pages.
    shape = LayerShape()
    stack = make_stack(make_layers(shape, 2, mx.bfloat16, ops), ops)
    caches = make_caches("paged", 2, shape, mx.bfloat16)
    batch = make_batches("paged")[0]
    x = make_input(batch, shape.width, mx.bfloat16, seed=1)
    return stack(x, batch, caches)

def bits(y):
    return bytes(memoryview(mx.contiguous(y).view(mx.uint8)))
"""


def python(code: str, threads: int = 3, **environ: str) -> str:
    """Run `code` in a new process and return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + code],
        check=False,
        env=os.environ | {"TINYLLM_NUM_THREADS": str(threads)} | environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_child_forked_after_use_is_refused_and_does_not_hang() -> None:
    code = """
x, w = mx.ones((3, 64)), mx.ones(64)
mx.eval(x, w, ops.rms_norm(x, w))
child = os.fork()
if child == 0:
    signal.alarm(30)
    try:
        mx.eval(ops.rms_norm(x, w))
    except RuntimeError as error:
        os._exit(3 if "expected a process that computes by itself" in str(error) else 4)
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ops.rms_norm(x, w).shape)
"""
    assert python(code) == "3 (3, 64)\n"


def test_a_child_forked_before_use_computes() -> None:
    code = """
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if mx.isfinite(forward()).all().item() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert python(code) == "0\n"


def test_a_failed_allocation_reaches_the_caller_and_the_pool_stays_usable() -> None:
    """The product needs a copy of x in float32, 128 MB, for which there is no address space."""
    code = """
w, x = mx.ones((16, 8192), mx.float16) / 8192, mx.ones((4096, 8192), mx.float16)
mx.eval(w, x, ops.linear(x[:1], w))
y = ops.linear(x, w)
size = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (size + (40 << 20), limits[1]))
try:
    mx.eval(y)
except RuntimeError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, limits)
print((ops.linear(x, w) == 1).all().item())
"""
    assert python(code) == "std::bad_alloc\nTrue\n"


def test_a_limit_on_threads_gives_a_smaller_pool() -> None:
    """The limit leaves room for MLX's thread and not for 200 workers."""
    code = """
mx.eval(mx.ones(3) + 1)
size = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (size + (200 << 20), limits[1]))  # 8 MB a stack
print(ops.linear(mx.ones((3, 64)), mx.ones((300, 64))).sum().item())
"""
    assert python(code, threads=200) == f"{float(3 * 300 * 64)}\n"


# The library call sets the mode of the thread that later starts the threads of MLX and of the pool.
FLUSH = {
    "x86_64": "(28, 0x8040)",  # the offset of MXCSR in fenv_t; FTZ and DAZ
    "aarch64": "(0, 1 << 24)",  # FPCR; FZ
}


@pytest.mark.skipif(platform.machine() not in FLUSH, reason="no known floating-point mode")
def test_bits_do_not_depend_on_the_hosts_treatment_of_subnormal_numbers() -> None:
    code = (
        f"""
import hashlib
libm = ctypes.CDLL("libm.so.6")
mode = (ctypes.c_uint8 * 64)()
offset, flags = {FLUSH.get(platform.machine())}
def set_mode(extra):
    libm.fegetenv(mode)
    word = ctypes.c_uint32.from_buffer(mode, offset)
    word.value = word.value | extra if extra else word.value & ~flags
    libm.fesetenv(mode)
weights = [
    quantize(normal((64, 256), seed=1), group, bits, mode)
    for group, bits, mode in ((32, 4, "mxfp4"), (32, 8, "mxfp8"), (16, 4, "nvfp4"))
]
mx.eval([w.arrays for w in weights])
x, w16 = normal((3, 256), seed=2), (normal((64, 256), seed=3) * 1e-6).astype(mx.float16)
"""
        """
def digest():
    found = hashlib.sha256()
    for isa in native.instruction_sets():
        os.environ["TINYLLM_CPU_ISA"] = isa
        for w in weights:
            found.update(bits(ops.embedding(mx.arange(64), w)))
            for phase in ("prefill", "decode"):
                found.update(bits(ops.linear(x, w, phase=phase)))
        found.update(bits(ops.linear(x.astype(mx.float16), w16)))
    return found.hexdigest()
if os.environ.get("FLUSH"):
    set_mode(flags)
print(digest())
"""
    )
    assert python(code, FLUSH="1") == python(code)


def test_two_streams_at_once_give_the_bits_of_one() -> None:
    code = """
expected, found = bits(forward()), []
def work():
    with mx.stream(mx.new_stream(mx.cpu)):
        for _ in range(20):
            found.append(bits(forward()))
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found), set(found) == {expected})
"""
    assert python(code) == "40 True\n"


def test_affinity_may_change_while_a_forward_pass_runs() -> None:
    code = """
cores = os.sched_getaffinity(0)
expected, done = bits(forward()), threading.Event()
def change():
    for turn in range(400):
        set_all({min(cores)} if turn % 2 else cores)
    set_all(cores)
    done.set()
def set_all(mask):
    for thread in sorted(map(int, os.listdir("/proc/self/task"))):
        os.sched_setaffinity(thread, mask)
thread = threading.Thread(target=change)
thread.start()
same = True
while not done.is_set():
    same = same and bits(forward()) == expected
thread.join()
def mask_of(thread):
    try:
        return frozenset(os.sched_getaffinity(thread))
    except ProcessLookupError:  # a joined thread may still have been in the list
        return frozenset(cores)
masks = {mask_of(int(thread)) for thread in os.listdir("/proc/self/task")}
print(same, masks == {frozenset(cores)})
"""
    assert python(code) == "True True\n"
