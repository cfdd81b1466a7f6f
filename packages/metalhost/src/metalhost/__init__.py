"""Runs and checks Metal kernels, written for `mx.fast.metal_kernel`, on a Linux CPU.

kernel = metal_kernel("double", ["x"], ["y"], source)
(y,) = kernel(inputs=[x], grid=(n, 1, 1), threadgroup=(64, 1, 1), ...)

A call raises `KernelFaultError`, with the lines of the kernel, if the kernel leaves an array,
races, reads what nobody wrote, diverges at a barrier, or does not come to its end.
"""

from metalhost.compiler import Compiler, CompilerError, compiler
from metalhost.fault import Fault, FaultKind, KernelFaultError, Place
from metalhost.kernel import MetalKernel, metal_kernel
from metalhost.problem import KernelTextError, Problem
from metalhost.settings import SWEEP, Settings, using

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
