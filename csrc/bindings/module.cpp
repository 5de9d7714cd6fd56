// lightcc._core: the engine as Python sees it. Private to the lightcc package; documented by
// lightcc/_core.pyi, which a test compares with what is registered here.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "lightcc/base/knobs.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/engine/current_world.hpp"
#include "lightcc/engine/store_exchange.hpp"
#include "lightcc/rendezvous/tcp_store.hpp"

#include "compression.hpp"
#include "cuda_array.hpp"
#include "errors.hpp"
#include "gpus.hpp"
#include "handles.hpp"
#include "lightcc_cuda/nccl/plane.hpp"
#include "lightcc_cuda/staging/cuda_staging.hpp"
#include "repeats.hpp"
#include "results_on_gpus.hpp"
#include "stats.hpp"
#include "store_binding.hpp"
#include "torch_tensors.hpp"
#include "world_binding.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace lightcc::bindings {
namespace {

std::shared_ptr<WorldBinding> create_world(int rank,
                                           int size,
                                           const std::string& rendezvous,
                                           std::string key_prefix,
                                           std::string secret,
                                           std::vector<std::vector<std::int32_t>> process_sets,
                                           bool dynamic_process_sets,
                                           std::optional<double> group_timeout_s) {
  WorldOptions options;
  if (!rendezvous.empty()) {
    options.epoch.store = make_tcp_store(rendezvous, secret);
  }
  auto knobs_or_not = read_knobs(process_environment());
  if (!knobs_or_not.ok() && size > 1 && options.epoch.store != nullptr) {
    const py::gil_scoped_release nogil;
    stay_away(*options.epoch.store,
              key_prefix,
              rank,
              knobs_or_not.status(),
              Clock::system().now() + std::chrono::seconds(2));
  }
  options.knobs = value_or_throw(std::move(knobs_or_not));
  options.knobs.dynamic_process_sets |= dynamic_process_sets;
  if (group_timeout_s.has_value()) {
    options.knobs.start_timeout_s = *group_timeout_s;
    options.start_limit = "the group's timeout";
  }
  options.epoch.rank = rank;
  options.epoch.size = size;
  options.epoch.key_prefix = std::move(key_prefix);
  options.epoch.secret = std::move(secret);
  options.epoch.rendezvous_address = rendezvous;
  options.process_sets = std::move(process_sets);
  const std::shared_ptr<Staging> staging = cuda::make_staging();
  options.staging.push_back(staging);
  options.planes.push_back(cuda::make_nccl_plane(staging, gpus_of_process));
  Knobs knobs = options.knobs;
  auto world = [&options] {
    const py::gil_scoped_release nogil;  // Both may take seconds.
    options.has_gpus = options.knobs.gpu_operations == "auto" && gpus_of_process().ok();
    return World::create(std::move(options));
  }();
  return std::make_shared<WorldBinding>(value_or_throw(std::move(world)), std::move(knobs));
}

py::dict process_sets(WorldBinding& world) {
  py::dict sets;
  for (const ProcessSetInfo& set : world.engine().process_sets()) {
    sets[py::int_(set.id)] = py::cast(set.ranks);
  }
  return sets;
}

py::dict fusion_knobs(const WorldBinding& world) {
  const Knobs& knobs = world.knobs();
  return py::dict("strategy"_a = knobs.fusion_strategy,
                  "schedule"_a = knobs.fusion_schedule,
                  "threshold_bytes"_a = knobs.fusion_threshold_bytes,
                  "threshold_is_given"_a = knobs.is_given("LIGHT_FUSION_THRESHOLD"));
}

py::dict compression_knobs(const WorldBinding& world) {
  const Knobs& knobs = world.knobs();
  return py::dict("quantize"_a = knobs.quantize,
                  "topk"_a = knobs.topk,
                  "topk_ratio"_a = knobs.topk_ratio,
                  "topk_fp16"_a = knobs.topk_fp16,
                  "topk_by_optimizer"_a = knobs.topk_by_optimizer);
}

void start_timeline(WorldBinding& world, std::string path, bool marks_cycles) {
  const Knobs& knobs = world.knobs();
  if (knobs.timeline.empty() && knobs.timeline_of_all.empty()) {
    throw py::value_error("Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage.");
  }
  const TimelineOptions options{std::move(path), marks_cycles, !knobs.timeline_of_all.empty()};
  const Status started = [&] {
    const py::gil_scoped_release nogil;
    return world.engine().start_timeline(options);
  }();
  throw_if_error(started);
}

void stop_timeline(WorldBinding& world) {
  const py::gil_scoped_release nogil;
  world.engine().stop_timeline();
}

void set_current(const std::shared_ptr<WorldBinding>& world) {
  const py::gil_scoped_release nogil;
  set_current_world(world == nullptr ? nullptr : &world->engine());
}

/// A property of the topology, which never changes.
template <auto Member>
auto topology(WorldBinding& world) {
  return world.engine().topology().*Member;
}

void register_world(py::module_& module) {
  py::class_<WorldBinding, std::shared_ptr<WorldBinding>> type(
      module, "World", plain_type(), "One membership of ranks, from init to shutdown or failure.");
  register_compression(module, type);
  type.def(py::init(&create_world),
           py::kw_only(),
           "rank"_a,
           "size"_a,
           "rendezvous"_a = "",
           "key_prefix"_a = "",
           "secret"_a = "",
           "process_sets"_a = std::vector<std::vector<std::int32_t>>(),
           "dynamic_process_sets"_a = false,
           "group_timeout_s"_a = py::none(),
           "Joins all ranks into one world; reads the environment's knobs.")
      .def_property_readonly("rank", &topology<&Topology::rank>)
      .def_property_readonly("size", &topology<&Topology::size>)
      .def_property_readonly("local_rank", &topology<&Topology::local_rank>)
      .def_property_readonly("local_size", &topology<&Topology::local_size>)
      .def_property_readonly("cross_rank", &topology<&Topology::cross_rank>)
      .def_property_readonly("cross_size", &topology<&Topology::cross_size>)
      .def_property_readonly("homogeneous", &topology<&Topology::homogeneous>)
      .def_property_readonly("hosts", &topology<&Topology::hosts>)
      .def_property_readonly("dynamic_process_sets", &WorldBinding::dynamic_process_sets)
      .def_property_readonly("answers_questions",
                             [](const WorldBinding& world) { return world.knobs().stat_server; })
      .def_property_readonly("failed", &WorldBinding::failed)
      .def("fail", &WorldBinding::fail, "reason"_a)
      .def(
          "allreduce",
          [](WorldBinding& world,
             py::handle tensors,
             bool grouped,
             bool in_place,
             OptionalName name,
             int op,
             Argument<double, "prescale_factor"> prescale,
             Argument<double, "postscale_factor"> postscale,
             OptionalSet process_set,
             bool waits,
             std::optional<CompressionSpec> compression,
             std::string sequence) {
            return world.allreduce(tensors,
                                   grouped,
                                   in_place,
                                   std::move(name),
                                   {.op = op,
                                    .prescale = prescale.value,
                                    .postscale = postscale.value,
                                    .compression = std::move(compression)},
                                   process_set,
                                   waits,
                                   std::move(sequence));
          },
          "tensors"_a,
          "grouped"_a,
          "in_place"_a,
          "name"_a,
          "op"_a,
          "prescale"_a,
          "postscale"_a,
          "process_set"_a,
          "waits"_a = false,
          "compression"_a = py::none(),
          "sequence"_a = "")
      .def(
          "allreduce_each",
          [](WorldBinding& world,
             py::handle tensors,
             const std::vector<std::string>& names,
             int op,
             double prescale,
             double postscale,
             OptionalSet process_set,
             bool together,
             int fusion_rule,
             std::uint64_t fusion_limit,
             std::optional<CompressionSpec> compression) {
            return world.allreduce_each(
                tensors,
                names,
                {.op = op,
                 .prescale = prescale,
                 .postscale = postscale,
                 .compression = std::move(compression)},
                process_set,
                {.together = together, .rule = fusion_rule, .limit_bytes = fusion_limit});
          },
          "tensors"_a,
          "names"_a,
          "op"_a,
          "prescale"_a,
          "postscale"_a,
          "process_set"_a,
          "together"_a = false,
          "fusion_rule"_a = 0,
          "fusion_limit"_a = 0,
          "compression"_a = py::none())
      .def("allgather",
           &WorldBinding::allgather,
           "tensors"_a,
           "grouped"_a,
           "name"_a,
           "process_set"_a,
           "waits"_a = false,
           "outputs"_a = py::none(),
           "sequence"_a = "",
           "compression"_a = py::none())
      .def(
          "reducescatter",
          [](WorldBinding& world,
             py::handle tensors,
             bool grouped,
             OptionalName name,
             int op,
             Argument<double, "prescale_factor"> prescale,
             Argument<double, "postscale_factor"> postscale,
             OptionalSet process_set,
             bool waits,
             py::handle outputs,
             std::string sequence,
             std::optional<CompressionSpec> compression) {
            return world.reducescatter(tensors,
                                       grouped,
                                       std::move(name),
                                       {.op = op,
                                        .prescale = prescale.value,
                                        .postscale = postscale.value,
                                        .compression = std::move(compression)},
                                       process_set,
                                       waits,
                                       outputs,
                                       std::move(sequence));
          },
          "tensors"_a,
          "grouped"_a,
          "name"_a,
          "op"_a,
          "prescale"_a,
          "postscale"_a,
          "process_set"_a,
          "waits"_a = false,
          "outputs"_a = py::none(),
          "sequence"_a = "",
          "compression"_a = py::none())
      .def("broadcast",
           &WorldBinding::broadcast,
           "tensor"_a,
           "in_place"_a,
           "root_rank"_a,
           "name"_a,
           "process_set"_a,
           "waits"_a = false,
           "sequence"_a = "")
      .def("alltoall",
           &WorldBinding::alltoall,
           "tensor"_a,
           "splits"_a,
           "name"_a,
           "process_set"_a,
           "waits"_a = false,
           "output"_a = py::none(),
           "sequence"_a = "")
      .def("send",
           &WorldBinding::send,
           "tensor"_a,
           "destination"_a,
           "name"_a,
           "process_set"_a,
           "waits"_a = false,
           "sequence"_a = "")
      .def("recv",
           &WorldBinding::recv,
           "tensor"_a,
           "source"_a,
           "name"_a,
           "process_set"_a,
           "waits"_a = false,
           "sequence"_a = "")
      .def("recv_any",
           &WorldBinding::recv_any,
           "tensor"_a,
           "process_set"_a,
           "sequence"_a = "",
           "Receives from whichever rank sends first; the result is the tensor and that rank.")
      .def("barrier", &WorldBinding::barrier, "process_set"_a)
      .def("join", &WorldBinding::join)
      .def("add_process_set", &WorldBinding::add_process_set, "ranks"_a)
      .def("remove_process_set", &WorldBinding::remove_process_set, "process_set"_a)
      .def("process_sets", &process_sets)
      .def("fusion_knobs", &fusion_knobs)
      .def("compression_knobs", &compression_knobs)
      .def("stats", &stats)
      .def("start_timeline", &start_timeline, "path"_a, "mark_cycles"_a)
      .def("stop_timeline", &stop_timeline)
      .def("finish",
           &WorldBinding::finish,
           "Waits until GPUs have finished all that is done so far; raises the world's error.")
      .def("shutdown", &WorldBinding::shutdown);
  register_repeats(type);
  module.def("set_current",
             &set_current,
             "world"_a,
             "Makes a world, or none, the one that operations inside graphs belong to.");
}

py::list knob_rows() {
  py::list rows;
  for (const KnobRow& row : knob_table()) {
    rows.append(py::dict("name"_a = row.name,
                         "aliases"_a = row.aliases,
                         "type"_a = row.type,
                         "default_value"_a = row.default_value,
                         "unit"_a = row.unit,
                         "meaning"_a = row.meaning,
                         "used_by"_a = row.used_by));
  }
  return rows;
}

void register_knobs(py::module_& module) {
  module.def("knob_table",
             &knob_rows,
             "Returns every environment variable that lightcc reads, one dict for each.");
  module.def(
      "knob_warnings",
      &knob_warnings,
      "names"_a,
      "Returns what to tell about variables in `names` that are misspelt or have no effect.");
  module.def(
      "check_knobs",
      [] { throw_if_error(read_knobs(process_environment()).status()); },
      "Raises ValueError when a variable of the environment has a value that is not allowed.");
  module.def(
      "simd_level",
      [] { return std::string(simd_level_name(detect_simd_level())); },
      "Returns the best SIMD level of this machine: plain, avx2 or avx512.");
}

}  // namespace
}  // namespace lightcc::bindings

PYBIND11_MODULE(_core, module) {
  module.doc() = "lightcc's engine; use it through the lightcc package.";
  lightcc::bindings::register_errors(module);
  lightcc::bindings::register_handles(module);
  lightcc::bindings::register_results_on_gpus(module);
  lightcc::bindings::register_torch_tensors(module);
  lightcc::bindings::register_world(module);
  lightcc::bindings::register_store(module);
  lightcc::bindings::register_knobs(module);
  lightcc::bindings::register_stats(module);
  lightcc::bindings::register_gpus(module);
  lightcc::bindings::register_cuda_array(module);
  module.def(
      "grid_widths",
      [](std::size_t members, std::size_t num_bytes) {
        return num_bytes > lightcc::kNarrowBytes ? lightcc::grid_widths(members, lightcc::kWideRow)
                                                 : lightcc::grid_widths(members);
      },
      "members"_a,
      "num_bytes"_a = 0,
      "Returns the widths of the levels of an operation between hosts, from the lowest up.");
}
