#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "primitives.h"
#include "thread_pool.h"
#include "tiers.h"

namespace nb = nanobind;
using namespace nb::literals;
using mlx::core::array;

namespace {

using Part = std::optional<array>;

tinyllm::WeightArrays weight(const array& w, const Part& scales, const Part& biases, int group_size,
                             int bits, const std::string& mode) {
  return {w, scales, biases, group_size, bits, mode};
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.def(
      "linear",
      [](const array& x, const array& w, const Part& scales, const Part& biases, const Part& bias,
         int group_size, int bits, const std::string& mode) {
        return tinyllm::linear(x, weight(w, scales, biases, group_size, bits, mode), bias);
      },
      "x"_a, "w"_a, "scales"_a.none(), "biases"_a.none(), "bias"_a.none(), "group_size"_a,
      "bits"_a, "mode"_a);
  m.def(
      "expert_linear",
      [](const array& x, const array& w, const Part& scales, const Part& biases,
         const array& experts, int group_size, int bits, const std::string& mode) {
        return tinyllm::expert_linear(x, weight(w, scales, biases, group_size, bits, mode),
                                      experts);
      },
      "x"_a, "w"_a, "scales"_a.none(), "biases"_a.none(), "experts"_a, "group_size"_a, "bits"_a,
      "mode"_a);
  m.def("rms_norm", &tinyllm::rms_norm, "x"_a, "weight"_a, "eps"_a);
  m.def("swiglu", &tinyllm::swiglu, "gate"_a, "up"_a);
  m.def("rope", &tinyllm::rope, "x"_a, "positions"_a, "frequencies"_a, "traditional"_a,
        "magnitude"_a);
  m.def("attention", &tinyllm::attention, "q"_a, "k"_a, "v"_a, "scale"_a, "causal"_a,
        "mask"_a.none());
  m.def("tiers", [] {
    std::vector<std::string> names;
    for (const tinyllm::Kernels* kernels : tinyllm::tiers()) names.emplace_back(kernels->name);
    return names;
  });
  m.def("chosen_tier", [] { return std::string(tinyllm::chosen_tier().name); });
  m.def("thread_count", &tinyllm::thread_count);
}
