#include "compression.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <pybind11/stl.h>

#include "lightcc/compression/residual/regroup.hpp"

#include "errors.hpp"

namespace py = pybind11;
using namespace py::literals;  // NOLINT(google-build-using-namespace): what literals are for.

namespace lightcc::bindings {
namespace {

std::span<const std::byte> span_of(const py::bytes& bytes) {
  return as_bytes(static_cast<std::string_view>(bytes));
}

py::bytes to_python(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

CompressionSpec make_spec(double ratio,
                          bool fp16,
                          bool exact,
                          std::uint32_t warmup_steps,
                          double momentum,
                          bool two_bits) {
  const CompressionSpec spec{.ratio = ratio,
                             .momentum = momentum,
                             .warmup_steps = warmup_steps,
                             .fp16 = fp16,
                             .two_bits = two_bits,
                             .exact = exact};
  if (!spec.is_valid()) {
    throw py::value_error(
        "top-k compression: the ratio must be above 0 and at most 1, the "
        "momentum at least 0 and below 1.");
  }
  return spec;
}

CompressionSpec make_quantized_spec(
    int bits, const std::vector<std::pair<std::uint64_t, unsigned>>& segments) {
  const Compressor compressor = compressor_of(bits);
  if (compressor == Compressor::kTopk) {
    throw py::value_error("quantised elements have 8 or 4 bits, not " + std::to_string(bits) + ".");
  }
  CompressionSpec spec{.compressor = compressor};
  for (const auto& [elements, width] : segments) {
    const RowSegment& segment = spec.segments.emplace_back(elements, width);
    if (!segment.is_valid()) {
      throw py::value_error(
          "a segment of " + std::to_string(elements) + " elements in " + std::to_string(width) +
          " bits: allowed is at least one element, in 8, 4 or 0 bits (as it is).");
    }
  }
  return spec;
}

py::object compression_position(WorldBinding& world, std::uint32_t process_set) {
  const std::optional<GridPosition> position = [&] {
    const py::gil_scoped_release nogil;
    return world.engine().compression_position(process_set);
  }();
  if (!position) {
    return py::none();
  }
  return py::make_tuple(position->blocks, position->block, position->members, position->member);
}

py::dict save_compression(WorldBinding& world) {
  auto saved = [&] {
    const py::gil_scoped_release nogil;
    return world.engine().save_compression();
  }();
  py::dict states;
  for (const SavedCompression& state : value_or_throw(std::move(saved))) {
    states[py::make_tuple(state.process_set, state.name)] = to_python(state.bytes);
  }
  return states;
}

SavedCompression to_saved(std::uint32_t process_set,
                          const std::string& name,
                          const py::bytes& state) {
  const std::span<const std::byte> bytes = span_of(state);
  return {process_set, name, {bytes.begin(), bytes.end()}};
}

py::tuple check_compression(WorldBinding& world,
                            std::uint32_t process_set,
                            const std::string& name,
                            const py::bytes& state) {
  const SavedCompression saved = to_saved(process_set, name, state);
  auto checked = [&] {
    const py::gil_scoped_release nogil;
    return world.engine().check_compression(saved);
  }();
  const SavedTensor tensor = value_or_throw(std::move(checked));
  return py::make_tuple(data_type_name(tensor.dtype), tensor.elements, tensor.steps);
}

void load_compression(WorldBinding& world,
                      std::uint32_t process_set,
                      const std::string& name,
                      const py::bytes& state) {
  const SavedCompression saved = to_saved(process_set, name, state);
  const Status status = [&] {
    const py::gil_scoped_release nogil;
    return world.engine().load_compression(saved);
  }();
  throw_if_error(status);
}

void scale_compression(WorldBinding& world,
                       double factor,
                       std::uint32_t process_set,
                       const std::vector<std::string>& names) {
  const Status status = [&] {
    const py::gil_scoped_release nogil;
    return world.engine().scale_compression(factor, process_set, names);
  }();
  throw_if_error(status);
}

GridPosition make_position(std::size_t blocks,
                           std::size_t block,
                           std::size_t members,
                           std::size_t member) {
  if (block >= blocks || member >= members) {
    throw py::value_error("member " + std::to_string(member) + " of block " +
                          std::to_string(block) + " is not in a grid of " + std::to_string(blocks) +
                          " blocks of " + std::to_string(members) + ".");
  }
  return {.blocks = blocks, .block = block, .members = members, .member = member};
}

/// They keep the bytes.
std::vector<std::span<const std::byte>> spans_of(const std::vector<py::bytes>& states) {
  std::vector<std::span<const std::byte>> spans;
  spans.reserve(states.size());
  for (const py::bytes& state : states) {
    spans.push_back(span_of(state));
  }
  return spans;
}

py::bytes regroup_compression(const py::bytes& like,
                              const std::vector<py::bytes>& states,
                              std::size_t blocks,
                              std::size_t block,
                              std::size_t members,
                              std::size_t member) {
  const GridPosition position = make_position(blocks, block, members, member);
  const std::span<const std::byte> first = span_of(like);
  const auto saved = spans_of(states);
  auto regrouped = [&] {
    const py::gil_scoped_release nogil;
    return regroup_residual(first, saved, position);
  }();
  return to_python(value_or_throw(std::move(regrouped)));
}

}  // namespace

void register_compression(py::module_& module,
                          py::class_<WorldBinding, std::shared_ptr<WorldBinding>>& world) {
  py::class_<CompressionSpec>(
      module, "CompressionSpec", plain_type(), "How an operation is compressed between hosts.")
      .def(py::init(&make_spec),
           "ratio"_a,
           "fp16"_a = false,
           "exact"_a = false,
           "warmup_steps"_a = 0,
           "momentum"_a = 0.0,
           "two_bits"_a = false)
      .def_static("quantized", &make_quantized_spec, "bits"_a, "segments"_a = py::tuple())
      .def_property_readonly("bits",
                             [](const CompressionSpec& spec) { return bits_of(spec.compressor); })
      .def_readonly("ratio", &CompressionSpec::ratio)
      .def_readonly("fp16", &CompressionSpec::fp16)
      .def_readonly("two_bits", &CompressionSpec::two_bits)
      .def_readonly("exact", &CompressionSpec::exact)
      .def_readonly("warmup_steps", &CompressionSpec::warmup_steps)
      .def_readonly("momentum", &CompressionSpec::momentum);
  world.def("compression_position", &compression_position, "process_set"_a)
      .def(
          "compresses",
          [](WorldBinding& self, std::uint32_t process_set, std::uint64_t num_bytes) {
            const py::gil_scoped_release nogil;
            return self.engine().compresses(process_set, num_bytes);
          },
          "process_set"_a,
          "num_bytes"_a)
      .def("save_compression", &save_compression)
      .def("check_compression", &check_compression, "process_set"_a, "name"_a, "state"_a)
      .def("load_compression", &load_compression, "process_set"_a, "name"_a, "state"_a)
      .def("scale_compression", &scale_compression, "factor"_a, "process_set"_a, "names"_a);
  module.def("regroup_compression",
             &regroup_compression,
             "like"_a,
             "states"_a,
             "blocks"_a,
             "block"_a,
             "members"_a,
             "member"_a,
             "Adds up what ranks of any grid saved of one tensor, for a rank of another grid.");
}

}  // namespace lightcc::bindings
