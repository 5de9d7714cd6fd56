// What Python sees of WorldStats. One table has the numbers: stats(), Prometheus, loggers,
// lightcc-top and docs/running/watching.md follow from it.
#include "stats.hpp"

#include <cstdint>

#include <pybind11/stl.h>

#include "lightcc/engine/world.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace lightcc::bindings {
namespace {

/// A counter only grows, a gauge may fall.
struct Kind {
  const char* name;
  const char* unit;
};
constexpr Kind kCount{"counter", ""};
constexpr Kind kBytes{"counter", "bytes"};
constexpr Kind kNow{"gauge", ""};

/// The table: calls `row` with name, kind, meaning and value of each number.
template <typename Row>
void each_number(const WorldStats& s, const Row& row) {
  const DeviceBuckets& gpu = s.device_buckets;
  const CompressionCounters& compression = s.compression;
  row("operations", kCount, "Operations that have completed", s.operations);
  row("buckets", kCount, "Collectives that were run for them", s.buckets);
  row("inline_allreduces", kCount, "All-reduces that the negotiation did", s.inline_allreduces);
  row("one_shot_allreduces", kCount, "All-reduces that each rank combined", s.one_shot_allreduces);
  row("staged_buckets", kCount, "GPU buckets that went through host memory", gpu.staged);
  row("nccl_buckets", kCount, "GPU buckets that NCCL ran", gpu.by_own_plane);
  row("nccl_two_level_buckets", kCount, "GPU buckets that NCCL ran on two levels", gpu.on_levels);
  row("nccl_unfinished_buckets", kNow, "GPU buckets that NCCL has not finished", gpu.unfinished);
  row("payload_bytes", kBytes, "Input of operations that have completed", s.payload_bytes);
  row("in_flight", kNow, "Operations that have not completed", s.in_flight);
  row("network_bytes_sent", kBytes, "To the network, with headers", s.network_bytes_sent);
  row("network_bytes_received", kBytes, "From the network, with headers", s.network_bytes_received);
  row("network_retransmits", kCount, "Packets that TCP sent again", s.network_retransmits);
  row("control_frames_sent", kCount, "Messages of the control plane", s.control_frames_sent);
  row("sleeps", kCount, "Times that the progress loop went to sleep", s.sleeps);
  row("yields", kCount, "Times that it offered its core to others", s.yields);
  row("slow_yields", kCount, "Times that the core came back after 2.5 ms or more", s.slow_yields);
  row("compressed_tensors", kCount, "Tensors that were compressed", compression.tensors);
  row("compressed_on_gpu", kCount, "Tensors whose elements a GPU selected", compression.on_device);
  row("compressed_dense_bytes",
      kBytes,
      "What they would have sent uncompressed",
      compression.dense_bytes);
  row("compressed_sent_bytes", kBytes, "What they have sent", compression.sent_bytes);
  row("compression_passes", kCount, "Passes of compression over the shards", compression.passes);
}

py::list stat_table() {
  py::list rows;
  each_number({}, [&](const char* name, const Kind& kind, const char* meaning, std::uint64_t) {
    rows.append(py::dict(
        "name"_a = name, "kind"_a = kind.name, "unit"_a = kind.unit, "meaning"_a = meaning));
  });
  return rows;
}

const char* carrier_name(Carrier carrier) {
  switch (carrier) {
    case Carrier::kStaged:
      return "staged";
    case Carrier::kNccl:
      return "nccl";
    case Carrier::kHost:
      break;
  }
  return "host";
}

py::list allreduce_costs(const WorldStats& stats) {
  py::list costs;
  for (const AllreduceCost& cost : stats.allreduce_costs) {
    costs.append(py::dict("process_set"_a = cost.process_set,
                          "carrier"_a = carrier_name(cost.carrier),
                          "two_level"_a = cost.two_level,
                          "max_bytes"_a = cost.max_bytes,
                          "samples"_a = cost.samples,
                          "seconds"_a = cost.seconds,
                          "seconds_per_byte"_a = cost.seconds_per_byte));
  }
  return costs;
}

py::list compressed_tensors(const WorldStats& stats) {
  py::list compressed;
  for (const TensorUsage& tensor : stats.compressed) {
    compressed.append(py::dict("process_set"_a = tensor.process_set,
                               "name"_a = tensor.name,
                               "steps"_a = tensor.usage.steps,
                               "dense_bytes"_a = tensor.usage.dense_bytes,
                               "sent_bytes"_a = tensor.usage.sent_bytes,
                               "input_energy"_a = tensor.usage.energy.input,
                               "kept_energy"_a = tensor.usage.energy.kept));
  }
  return compressed;
}

py::list slow_ranks(const WorldStats& stats) {
  py::list slow;
  for (const SlowRank& one : stats.lateness.slow) {
    slow.append(py::dict("rank"_a = one.rank, "factor"_a = one.factor, "seconds"_a = one.slow_s));
  }
  return slow;
}

}  // namespace

py::dict stats(WorldBinding& world) {
  const WorldStats stats = [&world] {
    const py::gil_scoped_release nogil;  // Another thread may drive the engine for a while.
    return world.engine().stats();
  }();
  py::dict found("compression"_a = compressed_tensors(stats),
                 "last_asked"_a = stats.lateness.last_asked,
                 "awaited_ranks"_a = stats.lateness.awaited,
                 "awaited_seconds"_a = stats.lateness.awaited_s,
                 "slow_ranks"_a = slow_ranks(stats),
                 "allreduce_costs"_a = allreduce_costs(stats));
  each_number(stats, [&](const char* name, const Kind&, const char*, std::uint64_t value) {
    found[name] = value;
  });
  return found;
}

void register_stats(py::module_& module) {
  module.def(
      "stat_table", &stat_table, "Returns every number that stats() counts, one dict for each.");
}

}  // namespace lightcc::bindings
