#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>

#include "mlx/handles.h"
#include "runtime/huge_pages.h"
#include "mlx/operations.h"
#include "runtime/thread_pool.h"
#include "dispatch/kernels.h"

namespace nb = nanobind;
using namespace nb::literals;
using mlx::core::array;

namespace {

using Part = std::optional<array>;

// As Python hands them over; keys and values as weights.
using Weight = std::tuple<array, Part, Part, int, int, std::string, int>;
using Projection = std::tuple<Weight, Part>;
using Norm = std::tuple<Part, float>;
using Rotary = std::tuple<array, bool, float>;
using PagedTokens = std::tuple<array, array, array, array, array>;
using PhaseName = std::optional<std::string>;  // prefill, decode or None

tinyllm::WeightArrays weight(const Weight& w) {
  const auto& [numbers, scales, biases, group_size, bits, mode, interleaved] = w;
  return {numbers, scales, biases, group_size, bits, mode, interleaved};
}

tinyllm::ProjectionArrays projection(const Projection& p) {
  return {weight(std::get<0>(p)), std::get<1>(p)};
}

tinyllm::NormArrays norm(const Norm& n) { return {std::get<0>(n), std::get<1>(n)}; }

tinyllm::RotaryArrays rotary(const Rotary& r) {
  return {std::get<0>(r), std::get<1>(r), std::get<2>(r)};
}

// What Python holds of a block. Primitives share the weights and not this object: the stream's thread
// lets go of them when a task is done, and must not wait for the interpreter to do so.
template <typename Weights>
struct Told {
  std::shared_ptr<Weights> weights;
};

// As many blocks as there is attention; a missing second half is none.
std::vector<tinyllm::BlockWeights> blocks(const std::vector<Told<tinyllm::AttentionWeights>>& attention,
                                          const std::vector<Told<tinyllm::FeedForward>>& second) {
  std::vector<tinyllm::BlockWeights> found;
  for (size_t i = 0; i < attention.size(); ++i) {
    found.push_back({attention[i].weights, i < second.size() ? second[i].weights : nullptr});
  }
  return found;
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.def(
      "linear",
      [](const array& x, const Weight& w, const Part& bias, const Part& residual,
         const PhaseName& phase) {
        return tinyllm::linear(x, weight(w), bias, residual, tinyllm::phase_of(phase));
      },
      "x"_a, "w"_a, "bias"_a.none(), "residual"_a.none() = nb::none(),
      "phase"_a.none() = nb::none());
  m.def(
      "expert_linear",
      [](const array& x, const Weight& w, const array& experts, const PhaseName& phase) {
        return tinyllm::expert_linear(x, weight(w), experts, tinyllm::phase_of(phase));
      },
      "x"_a, "w"_a, "experts"_a, "phase"_a.none() = nb::none());
  m.def(
      "embedding",
      [](const array& ids, const Weight& w, mlx::core::Dtype dtype) {
        return tinyllm::embedding(ids, weight(w), dtype);
      },
      "ids"_a, "w"_a, "dtype"_a);
  nb::class_<Told<tinyllm::FeedForward>>(m, "FeedForward");
  m.def(
      "mlp_weights",
      [](const Norm& n, const Weight& gate, const Weight& up, const Weight& down, bool residual) {
        nb::gil_scoped_release release;  // the weights are evaluated
        return Told<tinyllm::FeedForward>{std::make_shared<tinyllm::MlpWeights>(
            norm(n), weight(gate), weight(up), weight(down), residual)};
      },
      "norm"_a, "gate"_a, "up"_a, "down"_a, "residual"_a);
  m.def(
      "moe_weights",
      [](const Norm& n, const Weight& router, const Weight& gate, const Weight& up,
         const Weight& down, int chosen, bool shares_add_to_1, bool residual) {
        nb::gil_scoped_release release;
        return Told<tinyllm::FeedForward>{std::make_shared<tinyllm::MoeWeights>(
            norm(n), weight(router), weight(gate), weight(up), weight(down), chosen,
            shares_add_to_1, residual)};
      },
      "norm"_a, "router"_a, "gate"_a, "up"_a, "down"_a, "chosen"_a, "shares_add_to_1"_a,
      "residual"_a);
  m.def(
      "feed_forward",
      [](const array& x, const Told<tinyllm::FeedForward>& half, const PhaseName& phase) {
        return tinyllm::feed_forward(x, half.weights, tinyllm::phase_of(phase));
      },
      "x"_a, "half"_a, "phase"_a.none() = nb::none());
  nb::class_<Told<tinyllm::AttentionWeights>>(m, "AttentionWeights")
      .def(
          "__init__",
          [](Told<tinyllm::AttentionWeights>* self, const Norm& n, const Projection& q,
             const Projection& k, const Projection& v, const Projection& o, int head_dim,
             const Rotary& r, const Norm& q_norm, const Norm& k_norm, bool residual) {
            nb::gil_scoped_release release;
            new (self) Told<tinyllm::AttentionWeights>{std::make_shared<tinyllm::AttentionWeights>(
                norm(n), projection(q), projection(k), projection(v), projection(o), head_dim,
                rotary(r), norm(q_norm), norm(k_norm), residual)};
          },
          "norm"_a, "q"_a, "k"_a, "v"_a, "o"_a, "head_dim"_a, "rotary"_a, "q_norm"_a, "k_norm"_a,
          "residual"_a);
  m.def(
      "attention_inputs",
      [](const array& x, const Told<tinyllm::AttentionWeights>& block, const array& positions,
         const PhaseName& phase) {
        return tinyllm::attention_inputs(x, block.weights, positions, tinyllm::phase_of(phase));
      },
      "x"_a, "block"_a, "positions"_a, "phase"_a.none() = nb::none());
  m.def(
      "blocks",
      [](const array& x, const std::vector<Told<tinyllm::AttentionWeights>>& attention,
         const std::vector<Told<tinyllm::FeedForward>>& second, const std::vector<array>& stores,
         int offset, const PhaseName& phase) {
        return tinyllm::blocks(x, blocks(attention, second), stores, offset,
                               tinyllm::phase_of(phase));
      },
      "x"_a, "attention"_a, "second"_a, "stores"_a, "offset"_a, "phase"_a.none() = nb::none());
  m.def(
      "paged_blocks",
      [](const array& x, const std::vector<Told<tinyllm::AttentionWeights>>& attention,
         const std::vector<Told<tinyllm::FeedForward>>& second, const std::vector<Weight>& stores,
         const PagedTokens& pages, int window, const PhaseName& phase) {
        const auto& [table, starts, lengths, positions, slots] = pages;
        std::vector<tinyllm::WeightArrays> stored;
        for (const Weight& store : stores) stored.push_back(weight(store));
        return tinyllm::paged_blocks(x, blocks(attention, second), stored,
                                     {table, starts, lengths, positions, slots}, window,
                                     tinyllm::phase_of(phase));
      },
      "x"_a, "attention"_a, "second"_a, "stores"_a, "pages"_a, "window"_a,
      "phase"_a.none() = nb::none());
  m.def("rms_norm", &tinyllm::rms_norm, "x"_a, "weight"_a, "eps"_a);
  m.def("swiglu", &tinyllm::swiglu, "gate"_a, "up"_a);
  m.def("rope", &tinyllm::rope, "x"_a, "positions"_a, "frequencies"_a, "traditional"_a,
        "magnitude"_a);
  m.def("argmax", [](const array& x) { return tinyllm::argmax(x); }, "x"_a);
  m.def("top_k", [](const array& x, int k) { return tinyllm::top_k(x, k); }, "x"_a, "k"_a);
  m.def(
      "log_probability",
      [](const array& x, const array& ids) { return tinyllm::log_probability(x, ids); }, "x"_a,
      "ids"_a);
  m.def(
      "attention",
      [](const array& q, const Weight& k, const Weight& v, float scale, bool causal,
         const Part& mask, const PhaseName& phase) {
        return tinyllm::attention(q, weight(k), weight(v), scale, causal, mask,
                                  tinyllm::phase_of(phase));
      },
      "q"_a, "k"_a, "v"_a, "scale"_a, "causal"_a, "mask"_a.none(), "phase"_a.none() = nb::none());
  m.def(
      "paged_attention",
      [](const array& q, const Weight& k, const Weight& v, const array& block_table,
         const array& query_starts, const array& context_lengths, float scale, int window,
         const PhaseName& phase) {
        return tinyllm::paged_attention(q, weight(k), weight(v), block_table, query_starts,
                                        context_lengths, scale, window,
                                        tinyllm::phase_of(phase));
      },
      "q"_a, "k"_a, "v"_a, "block_table"_a, "query_starts"_a, "context_lengths"_a, "scale"_a,
      "window"_a, "phase"_a.none() = nb::none());
  m.def(
      "interleaves", [](const Weight& w) { return tinyllm::interleaves(weight(w)); },
      "w"_a);
  m.def(
      "interleave", [](const array& part, int side) { return tinyllm::interleave(part, side); },
      "part"_a, "side"_a);
  m.def(
      "use_huge_pages",
      [](const array& x) {
        array evaluated = x;  // another thread may assign to the Python object meanwhile
        nb::gil_scoped_release release;
        evaluated.eval();
        const size_t bytes = evaluated.data_size() * evaluated.itemsize();
        tinyllm::use_huge_pages(evaluated.data<void>(), bytes);
      },
      "x"_a);
  m.def("tiers", [] {
    std::vector<std::string> names;
    for (const tinyllm::Kernels* kernels : tinyllm::tiers()) names.emplace_back(kernels->name);
    return names;
  });
  m.def("chosen_tier", [] { return std::string(tinyllm::chosen_tier().name); });
  m.def("thread_count", &tinyllm::thread_count);
}
