"""The ops of `tinyllm_ops` as C++ kernels for CPUs, in the extension `tinyllm_kernels._cpu`.

Only `tinyllm_kernels.backend` imports the modules that need the extension. Before the import,
`tinyllm_kernels.backend` checks that the extension is installed and loads.
"""
