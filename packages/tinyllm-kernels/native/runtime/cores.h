// The cores that this process may use.
#pragma once

#include <string>
#include <vector>

namespace tinyllm {

// Returns the number of cores to which the logical processors `cpus` belong: the hardware threads
// of a core count once. `folder` has the layout of /sys/devices/system/cpu. A processor without an
// entry counts as one core.
int count_cores(const std::vector<int>& cpus, const std::string& folder);

// Returns the smallest CPU quota of the process's control group (cgroup v2) and of the groups above
// it, in cores, rounded up. A large number if there is none. `root` has the system's proc and sys.
int cores_of_quotas(const std::string& root);

// Returns the number of cores in the affinity mask, or of the quotas if that is smaller.
int usable_cores();

}  // namespace tinyllm
