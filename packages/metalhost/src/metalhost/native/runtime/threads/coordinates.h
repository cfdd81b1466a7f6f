// Coordinates of groups and threads, from their numbers.
#pragma once
#include <stdint.h>

#include "abi.h"
#include "host/launch.h"

namespace metalhost {

// Returns the coordinates that all threads of group `number` share.
inline Coordinates group_coordinates(uint32_t number) {
  Coordinates c{};
  for (int k = 0; k < 3; ++k) {
    c.grid[k] = launch.grid[k];
    c.dispatched_group_size[k] = launch.group_size[k];
    c.groups[k] = (c.grid[k] + c.dispatched_group_size[k] - 1) / c.dispatched_group_size[k];
    c.group[k] = number % c.groups[k];
    number /= c.groups[k];
    // MLX dispatches threads, not groups. A group at the edge of the grid is smaller.
    uint32_t left = c.grid[k] - c.group[k] * c.dispatched_group_size[k];
    c.group_size[k] = left < c.dispatched_group_size[k] ? left : c.dispatched_group_size[k];
  }
  auto simdgroups = [](const uint32_t n[3]) { return (n[0] * n[1] * n[2] + LANES - 1) / LANES; };
  c.simdgroups = simdgroups(c.group_size);
  c.dispatched_simdgroups = simdgroups(c.dispatched_group_size);
  return c;
}

// Returns the coordinates of the thread with this index in a group.
inline Coordinates thread_coordinates(uint32_t index, const Coordinates& of_group) {
  Coordinates c = of_group;
  const uint32_t* n = c.group_size;
  c.in_group[0] = index % n[0];
  c.in_group[1] = index / n[0] % n[1];
  c.in_group[2] = index / n[0] / n[1];
  for (int k = 0; k < 3; ++k) {
    c.in_grid[k] = c.group[k] * c.dispatched_group_size[k] + c.in_group[k];
  }
  c.index = index;
  c.lane = index % LANES;
  c.simdgroup = index / LANES;
  return c;
}

}  // namespace metalhost
