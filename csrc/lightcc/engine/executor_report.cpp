// What the executor counts, learns and says of the buckets that it runs: (executor.hpp)
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "lightcc/base/log.hpp"
#include "lightcc/engine/executor.hpp"

namespace lightcc {

void Executor::count_on_device(const Route& route) {
  device_buckets_.staged += route.carrier == Carrier::kStaged ? 1 : 0;
  if (route.carrier == Carrier::kNccl) {
    ++device_buckets_.by_own_plane;
    device_buckets_.on_levels += route.on_levels ? 1 : 0;
  }
}

// Adasum compares whole vectors of whole ranks; it goes through the flat group.
void Executor::explain_adasum_once(const Set& set, const Running& running) {
  const Signature& first = running.bucket.tensors.front().signature();
  const auto& facts = set.facts[Planes::index_of(running.route.plane(first.memory))];
  if (explained_adasum_ || !two_level_asked_ || !facts->two_level_max_bytes.has_value() ||
      running.route.algorithm != Algorithm::kAdasum || set.ranks.front() != world_.topology.rank) {
    return;
  }
  explained_adasum_ = true;
  LIGHTCC_LOG(LogLevel::kWarning,
              "Adasum has no two-level all-reduce; '%s' and other Adasum operations run flat",
              first.name.c_str());
}

// What the cost is learnt of; 0: nothing.
std::uint64_t Executor::learnable_bytes(const Bucket& bucket) {
  const Signature& first = bucket.tensors.front().signature();
  const bool is_learnt = first.op == OpType::kAllreduce && first.reduce_op != ReduceOp::kAdasum;
  return is_learnt ? byte_count(bucket) : 0;
}

void Executor::learn_cost(Set& set, const Running& running) {
  const std::uint64_t bytes = learnable_bytes(running.bucket);
  if (bytes == 0) {
    return;
  }
  Set::Costs& costs = set.costs.at(static_cast<std::size_t>(running.route.carrier));
  CostLine& line = running.route.on_levels ? costs.two_level : costs.flat;
  line.add(static_cast<double>(bytes),
           std::chrono::duration<double>(clock_.now() - running.started).count());
}

DeviceBuckets Executor::device_buckets() const {
  DeviceBuckets counted = device_buckets_;
  counted.unfinished = unfinished_.size();
  return counted;
}

std::vector<AllreduceCost> Executor::allreduce_costs() const {
  std::vector<AllreduceCost> costs;
  const auto add = [&](std::uint32_t id,
                       Carrier carrier,
                       bool two_level,
                       std::uint64_t maximum,
                       const CostLine& line) {
    if (line.samples() > 0) {
      const CostLine::Fit fit = line.fit();
      costs.push_back(
          {id, carrier, two_level, maximum, line.samples(), fit.seconds, fit.seconds_per_byte});
    }
  };
  for (const auto& [id, set] : sets_) {
    for (const Carrier carrier : {Carrier::kHost, Carrier::kStaged, Carrier::kNccl}) {
      const MemoryKind plane = carrier == Carrier::kNccl ? MemoryKind::kCuda : MemoryKind::kHost;
      const auto& facts = set.facts[Planes::index_of(plane)];
      const auto max_bytes = facts.has_value() ? facts->two_level_max_bytes : std::nullopt;
      const Set::Costs& of_carrier = set.costs.at(static_cast<std::size_t>(carrier));
      add(id, carrier, true, max_bytes.value_or(0), of_carrier.two_level);
      add(id, carrier, false, std::numeric_limits<std::uint64_t>::max(), of_carrier.flat);
    }
  }
  return costs;
}

void Executor::log_bucket(const Running& running) const {
  const Bucket& bucket = running.bucket;
  const Signature& first = bucket.tensors.front().signature();
  const std::chrono::duration<double, std::micro> took = clock_.now() - running.started;
  log_line(
      LogLevel::kDebug,
      "bucket %llu: %s, %zu tensors from '%s', %llu bytes, process set %u, lane %u, %s, %.1f us",
      static_cast<unsigned long long>(buckets_),
      op_type_name(first.op),
      bucket.tensors.size(),
      first.name.c_str(),
      static_cast<unsigned long long>(byte_count(bucket)),
      bucket.process_set,
      bucket.lane,
      running.route.name,
      took.count());
}

}  // namespace lightcc
