// The cores that this process may use.
#pragma once

#include <string>
#include <vector>

namespace tinyllm {

// Returns the number of cores to which the logical processors `cpus` belong: the hardware threads
// of a core count once. `folder` has the layout of /sys/devices/system/cpu. A processor without an
// entry counts as one core.
int count_cores(const std::vector<int>& cpus, const std::string& folder);

// Returns the number of cores in the affinity mask, or the CPU quota of the cgroup, rounded up, if
// that is smaller.
int usable_cores();

}  // namespace tinyllm
