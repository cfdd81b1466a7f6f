"""A model in several processes, of which the first leads and the others follow.

Rank 0 does what a program does with a model; with every pass it tells the others, in a line of
JSON over a TCP connection, which tokens go through it. The numbers themselves travel through
`mx.distributed`.
"""

from tinyllm_qwen.parallel.leader import Leader
from tinyllm_qwen.parallel.line import LIMIT
from tinyllm_qwen.parallel.member import JOINING, Member, is_launched, launched_split

__all__ = ["JOINING", "LIMIT", "Leader", "Member", "is_launched", "launched_split"]
