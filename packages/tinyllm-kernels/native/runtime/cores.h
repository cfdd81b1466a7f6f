// The cores that this process may use.
#pragma once

#include <string>
#include <vector>

namespace tinyllm {

// Returns how many cores the processors of Linux in `cpus` are. Hardware threads of one core count
// once. `folder` describes processors as /sys/devices/system/cpu does; those that it lacks count one
// core each.
int count_cores(const std::vector<int>& cpus, const std::string& folder);

// Returns the cores of the affinity mask, or as many as the CPU quota of the cgroup allows, rounded
// up, if these are fewer.
int usable_cores();

}  // namespace tinyllm
