#include "runtime/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

namespace tinyllm {
namespace {

int cores_of_affinity() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
    return count_cores(cpus, "/sys/devices/system/cpu");
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

// The CPU quota of a control group, in cores. A large number if it has none.
int cores_of_group(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1 << 20;
  return static_cast<int>(std::ceil(std::atof(quota.c_str()) / period));
}

}  // namespace

int count_cores(const std::vector<int>& cpus, const std::string& folder) {
  std::set<std::string> cores;
  for (int cpu : cpus) {
    const std::string number = std::to_string(cpu);
    std::ifstream file(folder + "/cpu" + number + "/topology/thread_siblings_list");
    std::string siblings;
    cores.insert(file >> siblings ? siblings : number);
  }
  return static_cast<int>(cores.size());
}

int cores_of_quotas(const std::string& root) {
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  // In a container the path may be one of the host, whose folder is missing. The container's own
  // group is then the last one.
  int cores = 1 << 20;
  while (true) {
    cores = std::min(cores, cores_of_group(root + "/sys/fs/cgroup" + path));
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return cores;
    path.resize(slash);
  }
}

int usable_cores() { return std::max(1, std::min(cores_of_affinity(), cores_of_quotas(""))); }

}  // namespace tinyllm
