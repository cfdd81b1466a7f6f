#include "runtime/cores.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace tinyllm {
namespace {

int cores_of_affinity() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
    return count_cores(cpus, "/sys/devices/system/cpu");
  }
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

// The CPU quota of cgroup v2. A large number if there is none.
int cores_of_cgroup() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
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

int usable_cores() { return std::max(1, std::min(cores_of_affinity(), cores_of_cgroup())); }

}  // namespace tinyllm
