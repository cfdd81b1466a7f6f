// The Python module `tinyllm_kernels._cpu`: see _cpu.pyi for its types.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <variant>

#include "dispatch/kernel_table.h"
#include "mlx/donation.h"
#include "mlx/handles.h"
#include "mlx/loan.h"
#include "mlx/operations.h"
#include "runtime/huge_pages.h"
#include "runtime/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;
using mlx::core::array;

namespace {

using OptionalArray = std::optional<array>;

// Plain tuples from Python. Keys and values have the type of a weight.
using Weight = std::tuple<array, OptionalArray, OptionalArray, int, int, std::string, int, bool>;
using OptionalWeight = std::optional<Weight>;
using Projection = std::tuple<Weight, OptionalArray>;
using Norm = std::tuple<array, float>;
using OptionalNorm = std::optional<Norm>;
using Rope = std::tuple<array, bool, float>;
using PageFormat = std::tuple<int, int>;  // group size and bits
using PageTable = std::tuple<array, array, array, array, array>;
using StateTable = std::tuple<array, array, array>;
// Arrays of all recurrent layers, tables, and the index of the table of each layer.
using GroupStates = std::tuple<std::vector<array>, std::vector<StateTable>, std::vector<int>>;
using PhaseName = std::optional<std::string>;  // prefill, decode or None

tinyllm::WeightArrays weight(const Weight& w) {
  const auto& [w_array, scales, biases, group_size, bits, mode, interleaved, int8_activations] = w;
  return {w_array, scales, biases, group_size, bits, mode, interleaved, int8_activations};
}

std::optional<tinyllm::WeightArrays> optional_weight(const OptionalWeight& w) {
  return w ? std::optional(weight(*w)) : std::nullopt;
}

std::optional<tinyllm::SharedExpertArrays> shared_expert(const std::vector<Weight>& w) {
  if (w.empty()) return std::nullopt;
  return {{weight(w.at(0)), weight(w.at(1)), weight(w.at(2)), weight(w.at(3))}};
}

tinyllm::ProjectionArrays projection(const Projection& p) {
  return {weight(std::get<0>(p)), std::get<1>(p)};
}

tinyllm::NormArrays norm(const Norm& n) { return {std::get<0>(n), std::get<1>(n)}; }

std::optional<tinyllm::NormArrays> optional_norm(const OptionalNorm& n) {
  return n ? std::optional(norm(*n)) : std::nullopt;
}

tinyllm::RopeArrays rope(const Rope& r) { return {std::get<0>(r), std::get<1>(r), std::get<2>(r)}; }

tinyllm::PageFormat page_format(const PageFormat& f) { return {std::get<0>(f), std::get<1>(f)}; }

tinyllm::PageTableArrays page_table(const PageTable& t) {
  const auto& [block_tables, cu_seqlens_q, seq_lens, positions, slot_mapping] = t;
  return {block_tables, cu_seqlens_q, seq_lens, positions, slot_mapping};
}

tinyllm::StateTableArrays state_table(const StateTable& t) {
  return {std::get<0>(t), std::get<1>(t), std::get<2>(t)};
}

tinyllm::GroupStateArrays group_states(const GroupStates& s) {
  tinyllm::GroupStateArrays states{std::get<0>(s), {}, std::get<2>(s)};
  for (const StateTable& table : std::get<1>(s)) states.tables.push_back(state_table(table));
  return states;
}

// The Python object of a handle. Primitives share the handle and not this object, because the
// stream's thread releases it after a task and must not wait for the interpreter.
template <typename Handle>
struct PythonHandle {
  std::shared_ptr<Handle> handle;
};

using AttentionObject = PythonHandle<tinyllm::AttentionHandle>;
using DeltaNetObject = PythonHandle<tinyllm::DeltaNetHandle>;
using FeedForwardObject = PythonHandle<tinyllm::FeedForward>;

using LoanObject = PythonHandle<tinyllm::Loan>;
using LayerGroupObject = PythonHandle<const std::vector<tinyllm::LayerHandle>>;

using Halves = std::tuple<std::variant<AttentionObject, DeltaNetObject>, FeedForwardObject>;

LayerGroupObject layer_group(const std::vector<Halves>& halves) {
  std::vector<tinyllm::LayerHandle> layers;
  for (const auto& [mixer, feed_forward] : halves) {
    tinyllm::LayerHandle& layer = layers.emplace_back();
    if (const auto* attention = std::get_if<AttentionObject>(&mixer)) {
      layer.attention = attention->handle;
    } else {
      layer.delta_net = std::get<DeltaNetObject>(mixer).handle;
    }
    layer.feed_forward = feed_forward.handle;
  }
  return {std::make_shared<const std::vector<tinyllm::LayerHandle>>(std::move(layers))};
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.def(
      "linear",
      [](const array& x, const Weight& w, const OptionalArray& bias, const OptionalArray& residual,
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
  nb::class_<FeedForwardObject>(m, "FeedForwardHandle");
  m.def(
      "mlp_handle",
      [](const Norm& n, const Weight& gate, const Weight& up, const Weight& down,
         bool adds_residual) {
        nb::gil_scoped_release release;  // the constructor evaluates the weights
        return FeedForwardObject{std::make_shared<tinyllm::MlpHandle>(
            norm(n), weight(gate), weight(up), weight(down), adds_residual)};
      },
      "norm"_a, "gate"_a, "up"_a, "down"_a, "adds_residual"_a);
  m.def(
      "moe_handle",
      [](const Norm& n, const Weight& router, const Weight& gate, const Weight& up,
         const Weight& down, int experts_per_token, bool normalizes_routing_weights,
         const std::vector<Weight>& shared) {
        nb::gil_scoped_release release;
        return FeedForwardObject{std::make_shared<tinyllm::MoeHandle>(
            norm(n), weight(router), weight(gate), weight(up), weight(down), experts_per_token,
            normalizes_routing_weights, shared_expert(shared))};
      },
      "norm"_a, "router"_a, "gate"_a, "up"_a, "down"_a, "experts_per_token"_a,
      "normalizes_routing_weights"_a, "shared"_a = std::vector<Weight>());
  m.def(
      "feed_forward",
      [](const array& x, const FeedForwardObject& self, const PhaseName& phase) {
        return tinyllm::feed_forward(x, self.handle, tinyllm::phase_of(phase));
      },
      "x"_a, "handle"_a, "phase"_a.none() = nb::none());
  nb::class_<AttentionObject>(m, "AttentionHandle")
      .def(
          "__init__",
          [](AttentionObject* self, const Norm& n, const Projection& q, const Projection& k,
             const Projection& v, const Projection& o, int head_dim, const Rope& r,
             const OptionalNorm& q_norm, const OptionalNorm& k_norm, const OptionalWeight& gate) {
            nb::gil_scoped_release release;
            new (self) AttentionObject{std::make_shared<tinyllm::AttentionHandle>(
                norm(n), projection(q), projection(k), projection(v), projection(o), head_dim,
                rope(r), optional_norm(q_norm), optional_norm(k_norm), optional_weight(gate))};
          },
          "norm"_a, "q"_a, "k"_a, "v"_a, "o"_a, "head_dim"_a, "rope"_a, "q_norm"_a.none(),
          "k_norm"_a.none(), "gate"_a.none() = nb::none());
  nb::class_<DeltaNetObject>(m, "DeltaNetHandle")
      .def(
          "__init__",
          [](DeltaNetObject* self, const Norm& n, const std::vector<Weight>& projections,
             const array& conv, const array& a_log, const array& dt_bias, const Norm& head_norm,
             int key_heads, int key_dim) {
            const auto& w = projections;
            // Copies, since another thread may assign to the Python objects.
            const tinyllm::DeltaNetArrays arrays{weight(w.at(0)), weight(w.at(1)), weight(w.at(2)),
                                                 weight(w.at(3)), weight(w.at(4)), conv,
                                                 a_log,           dt_bias,         norm(head_norm)};
            nb::gil_scoped_release release;
            new (self) DeltaNetObject{
                std::make_shared<tinyllm::DeltaNetHandle>(norm(n), arrays, key_heads, key_dim)};
          },
          "norm"_a, "projections"_a, "conv"_a, "a_log"_a, "dt_bias"_a, "head_norm"_a, "key_heads"_a,
          "key_dim"_a);
  m.def(
      "project_qkv",
      [](const array& x, const AttentionObject& self, const array& positions,
         const PhaseName& phase) {
        return tinyllm::project_qkv(x, self.handle, positions, tinyllm::phase_of(phase));
      },
      "x"_a, "handle"_a, "positions"_a, "phase"_a.none() = nb::none());
  nb::class_<LayerGroupObject>(m, "LayerGroup");
  m.def("layer_group", &layer_group, "halves"_a);
  m.def(
      "layers",
      [](const array& x, const LayerGroupObject& group, const std::vector<array>& caches,
         int offset, const PhaseName& phase, const GroupStates& states) {
        return tinyllm::layers(x, group.handle, caches, group_states(states), offset,
                               tinyllm::phase_of(phase));
      },
      "x"_a, "group"_a, "caches"_a, "offset"_a, "phase"_a.none() = nb::none(),
      "states"_a = GroupStates());
  m.def(
      "paged_layers",
      [](const array& x, const LayerGroupObject& group, const std::vector<array>& caches,
         const PageFormat& format, const PageTable& pages, int window, const PhaseName& phase,
         const GroupStates& states, bool without_tokens) {
        return tinyllm::paged_layers(x, group.handle, caches, group_states(states),
                                     page_format(format), page_table(pages), window,
                                     tinyllm::phase_of(phase), without_tokens);
      },
      "x"_a, "group"_a, "caches"_a, "page_format"_a, "pages"_a, "window"_a,
      "phase"_a.none() = nb::none(), "states"_a = GroupStates(), "without_tokens"_a = false);
  nb::class_<LoanObject>(m, "Loan")
      .def(
          "__init__",
          [](LoanObject* self, const LayerGroupObject& group, const std::vector<array>& arrays) {
            new (self) LoanObject{std::make_shared<tinyllm::Loan>(group.handle, arrays)};
          },
          "group"_a, "arrays"_a)
      .def(
          "layers",
          [](LoanObject& self, const array& x, const LayerGroupObject& group, int offset,
             const PhaseName& phase) {
            return tinyllm::layers(x, group.handle, *self.handle, offset,
                                   tinyllm::phase_of(phase));
          },
          "x"_a, "group"_a, "offset"_a, "phase"_a.none())
      .def(
          "paged_layers",
          [](LoanObject& self, const array& x, const LayerGroupObject& group,
             const PageFormat& format, const PageTable& pages, int window, const PhaseName& phase,
             bool without_tokens) {
            return tinyllm::paged_layers(x, group.handle, *self.handle, page_format(format),
                                         page_table(pages), window, tinyllm::phase_of(phase),
                                         without_tokens);
          },
          "x"_a, "group"_a, "page_format"_a, "pages"_a, "window"_a, "phase"_a.none(),
          "without_tokens"_a = false)
      .def(
          "end",
          [](LoanObject& self, bool drops_last) {
            nb::gil_scoped_release release;  // waits for passes
            return self.handle->end(drops_last);
          },
          "drops_last"_a);
  m.def("rms_norm", &tinyllm::rms_norm, "x"_a, "weight"_a, "eps"_a);
  m.def("output_gate", &tinyllm::output_gate, "x"_a, "gate"_a);
  m.def("swiglu", &tinyllm::swiglu, "gate"_a, "up"_a);
  m.def("rope", &tinyllm::rope, "x"_a, "positions"_a, "frequencies"_a, "traditional"_a,
        "magnitude"_a);
  m.def(
      "causal_conv",
      [](const array& x, const array& weight, const array& state, const StateTable& table) {
        return tinyllm::causal_conv(x, weight, state, state_table(table));
      },
      "x"_a, "weight"_a, "state"_a, "state_table"_a);
  m.def(
      "gated_delta",
      [](const array& q, const array& k, const array& v, const array& a, const array& b,
         const array& a_log, const array& dt_bias, const array& state, const StateTable& table) {
        return tinyllm::gated_delta(q, k, v, a, b, a_log, dt_bias, state, state_table(table));
      },
      "q"_a, "k"_a, "v"_a, "a"_a, "b"_a, "a_log"_a, "dt_bias"_a, "state"_a, "state_table"_a);
  m.def("gated_rms_norm", &tinyllm::gated_rms_norm, "x"_a, "gate"_a, "weight"_a, "eps"_a);
  m.def("argmax", &tinyllm::argmax, "x"_a);
  m.def("top_k", &tinyllm::top_k, "x"_a, "k"_a);
  m.def("log_probability", &tinyllm::log_probability, "x"_a, "ids"_a);
  m.def(
      "attention",
      [](const array& q, const Weight& k, const Weight& v, float scale, bool causal,
         const OptionalArray& mask, const PhaseName& phase) {
        return tinyllm::attention(q, weight(k), weight(v), scale, causal, mask,
                                  tinyllm::phase_of(phase));
      },
      "q"_a, "k"_a, "v"_a, "scale"_a, "causal"_a, "mask"_a.none(), "phase"_a.none() = nb::none());
  m.def(
      "paged_attention",
      [](const array& q, const Weight& k, const Weight& v, const array& block_tables,
         const array& cu_seqlens_q, const array& seq_lens, float scale, int window,
         const PhaseName& phase) {
        return tinyllm::paged_attention(q, weight(k), weight(v), block_tables, cu_seqlens_q,
                                        seq_lens, scale, window, tinyllm::phase_of(phase));
      },
      "q"_a, "k"_a, "v"_a, "block_tables"_a, "cu_seqlens_q"_a, "seq_lens"_a, "scale"_a,
      "window"_a, "phase"_a.none() = nb::none());
  m.def(
      "fastest_layout", [](const Weight& w) { return tinyllm::fastest_layout(weight(w)); }, "w"_a);
  m.def("widen", &tinyllm::widen, "packed"_a, "bits"_a);
  m.def(
      "uses_int8_activations",
      [](const Weight& w) { return tinyllm::uses_int8_activations(weight(w)); }, "w"_a);
  m.def("interleave", &tinyllm::interleave, "array"_a, "rows"_a);
  m.def("zeros", &tinyllm::zeros, "shape"_a, "dtype"_a);
  m.def(
      "use_huge_pages",
      [](const array& x) {
        array evaluated = x;  // a copy, since another thread may assign to the Python object
        nb::gil_scoped_release release;
        evaluated.eval();
        const size_t bytes = evaluated.data_size() * evaluated.itemsize();
        tinyllm::use_huge_pages(evaluated.data<void>(), bytes);
      },
      "x"_a);
  m.def("copied_bytes", &tinyllm::copied_bytes);
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (const tinyllm::KernelTable* kernels : tinyllm::kernel_tables())
      names.emplace_back(kernels->name);
    return names;
  });
  m.def("chosen_instruction_set", [] { return std::string(tinyllm::chosen_kernels().name); });
  m.def("thread_count", &tinyllm::thread_count);
}
