// Prints the fastest instruction set of this machine, for builds that are run where they are made.
#include <cstdio>

#include "dispatch/kernels.h"

int main() { std::fputs(tinyllm::fastest_tier(), stdout); }
