"""Input from a terminal and output to one."""
