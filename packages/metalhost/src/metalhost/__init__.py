"""Run and check Metal kernels, written for `mx.fast.metal_kernel`, on a Linux CPU.

kernel = metal_kernel("double", ["x"], ["y"], source)
(y,) = kernel(inputs=[x], grid=(n, 1, 1), threadgroup=(64, 1, 1), ...)

A call raises `KernelFaultError`, with the lines of the kernel, for an access out of bounds, a data
race, a read of uninitialized memory, divergence at a barrier, a timeout or a crash.
"""

from metalhost.compilation.compiler import Compiler, CompilerError, compiler
from metalhost.execution.fault import Fault, FaultKind, KernelFaultError, Place
from metalhost.kernel import MetalKernel, metal_kernel
from metalhost.settings import SWEEP, Settings, using
from metalhost.text.problem import KernelTextError, Problem

__all__ = [
    "SWEEP",
    "Compiler",
    "CompilerError",
    "Fault",
    "FaultKind",
    "KernelFaultError",
    "KernelTextError",
    "MetalKernel",
    "Place",
    "Problem",
    "Settings",
    "compiler",
    "metal_kernel",
    "using",
]
