// Program of a kernel: runs one launch, read from standard input. The reports go to standard
// output.
#include <stdio.h>
#include <stdlib.h>

#include "checks/checks.h"
#include "fibers/fiber.h"
#include "fibers/schedule.h"
#include "host/launch.h"
#include "host/report.h"
#include "memory/buffer.h"
#include "threads/threadgroup.h"

using namespace metalhost;

int main() {
  read_launch();
  map_stacks(launch.group_size[0] * launch.group_size[1] * launch.group_size[2]);
  map_buffers();
  install_signal_handlers();

  uint32_t groups = 1;
  for (int k = 0; k < 3; ++k) {
    groups *= (launch.grid[k] + launch.group_size[k] - 1) / launch.group_size[k];
  }
  uint32_t* order = static_cast<uint32_t*>(malloc((groups + 1) * sizeof(uint32_t)));
  if (!order) {
    perror("ordering the groups");
    return 2;
  }
  Schedule schedule(launch.seed);
  schedule.order_groups(order, groups);
  for (uint32_t i = 0; i < groups; ++i) run_group(order[i], schedule);

  if (launch.flags & CHECKED) report_unwritten();
  write_outputs();
  finish(true);
}
