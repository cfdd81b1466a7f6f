"""The ops of `tinyllm_ops` as C++ kernels for CPUs, in the extension `tinyllm_kernels._cpu`.

Only `tinyllm_kernels.backend` imports the modules that need the extension, after it has checked
that the extension is there and loads.
"""
