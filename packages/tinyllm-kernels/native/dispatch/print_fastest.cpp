// Prints the fastest instruction set of this machine, for builds that are run where they are made.
#include <cstdio>

#include "dispatch/kernel_table.h"

int main() { std::fputs(tinyllm::fastest_instruction_set(), stdout); }
