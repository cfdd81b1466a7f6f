// The arena that arrays of intermediate results come from.
#include "runtime/arena.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check/checks.h"

namespace tinyllm::check {
namespace {

// A block whose bytes all have one value, to see that no other block overlaps it.
struct Block {
  Block(Arena& arena, size_t bytes, char value)
      : memory(static_cast<char*>(arena.allocate(bytes))), bytes(bytes), value(value) {
    std::memset(memory, value, bytes);
  }

  bool is_intact() const {
    return reinterpret_cast<uintptr_t>(memory) % 64 == 0 &&
           static_cast<size_t>(std::count(memory, memory + bytes, value)) == bytes;
  }

  char* memory;
  size_t bytes;
  char value;
};

// Blocks of random sizes, released in random order.
void check_random_blocks(const KernelTable& kernels) {
  Arena arena;
  std::vector<Block> blocks;
  bool are_intact = true;
  for (int step = 0; step < 2000; ++step) {
    // More blocks in one half of a cycle of 200 steps, more releases in the other.
    if (blocks.empty() || generator() % 4 < (step / 100 % 2 ? 1u : 3u)) {
      blocks.emplace_back(arena, generator() % 30000, static_cast<char>(step));
    } else {
      const size_t index = generator() % blocks.size();
      are_intact &= blocks[index].is_intact();
      arena.release(blocks[index].memory);
      blocks.erase(blocks.begin() + static_cast<int64_t>(index));
    }
  }
  for (const Block& block : blocks) {
    are_intact &= block.is_intact();
    arena.release(block.memory);
  }
  expect(are_intact, kernels, "that blocks of an arena do not overlap");
}

// The blocks of a pass: two that stay, and one for each layer.
void compute_pass(Arena& arena, size_t bytes) {
  void* first = arena.allocate(bytes);
  void* second = arena.allocate(0);
  for (int layer = 0; layer < 20; ++layer) arena.release(arena.allocate(bytes));
  arena.release(first);
  arena.release(second);
}

void check_capacity(const KernelTable& kernels) {
  constexpr size_t kLarge = 30 << 20, kSmall = 1 << 10;
  Arena arena;
  expect(arena.capacity() == 0, kernels, "no memory of an unused arena");
  compute_pass(arena, kLarge);
  compute_pass(arena, kLarge);
  const size_t capacity = arena.capacity();
  expect(capacity >= 2 * kLarge && capacity < 3 * kLarge, kernels,
         "the memory of one pass, not of all its layers");
  for (int pass = 0; pass < 10; ++pass) compute_pass(arena, kSmall);
  expect(arena.capacity() == capacity, kernels, "the same memory after a few small passes");
  for (int pass = 0; pass < 5000; ++pass) compute_pass(arena, kSmall);
  expect(arena.capacity() < kLarge, kernels, "less memory after many small passes");
}

}  // namespace

void check_arena(const KernelTable& kernels) {
  check_random_blocks(kernels);
  check_capacity(kernels);
}

}  // namespace tinyllm::check
