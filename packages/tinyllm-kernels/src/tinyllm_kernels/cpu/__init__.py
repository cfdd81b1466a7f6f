"""The ops of `tinyllm_ops` as C++ kernels for CPUs, in the extension `tinyllm_kernels._cpu`.

Outside of this folder, only `tinyllm_kernels.backend` imports its modules. Before the import,
`tinyllm_kernels.backend` checks that the extension is installed and loads.
"""
