"""One model in several processes: a driver on rank 0, workers on the other ranks.

Rank 0 runs the program. It sends a command for each forward pass to the workers, as a line of JSON
over TCP. Activations are exchanged through `mx.distributed`.
"""
