#include "lightcc/engine/route.hpp"

#include "lightcc/engine/bucket.hpp"

namespace lightcc {
namespace {

bool is_compressed(const Signature& first, const RouteFacts& facts) {
  if (!first.compression.has_value() || !facts.may_compress) {
    return false;
  }
  if (first.op == OpType::kAllreduce) {
    return true;
  }
  // Rows are compressed in host memory alone.
  return (first.op == OpType::kAllgather || first.op == OpType::kReducescatter) &&
         (first.memory == MemoryKind::kHost || facts.may_stage);
}

Algorithm algorithm_of(const Signature& first, const RouteFacts& facts) {
  if (first.op == OpType::kAllreduce && first.reduce_op == ReduceOp::kAdasum) {
    return Algorithm::kAdasum;
  }
  return is_compressed(first, facts) ? Algorithm::kCompressed : Algorithm::kGroup;
}

// A plane that is not the host's compresses on two levels alone, where it may leave that.
std::optional<Carrier> carrier_of(const Signature& first, const RouteFacts& facts) {
  if (first.memory == MemoryKind::kHost) {
    return Carrier::kHost;
  }
  if (facts.own.has_value() &&
      (!facts.may_stage || !is_compressed(first, facts) ||
       (first.op == OpType::kAllreduce && facts.own->two_level_max_bytes.has_value()))) {
    return Carrier::kNccl;
  }
  return facts.may_stage ? std::optional(Carrier::kStaged) : std::nullopt;
}

// All that is compressed runs on the levels that there are; the others by operation and size.
bool runs_on_levels(const Signature& first,
                    std::uint64_t bytes,
                    Algorithm algorithm,
                    const PlaneFacts& plane) {
  if (!plane.two_level_max_bytes.has_value() || algorithm == Algorithm::kAdasum) {
    return false;
  }
  const bool has_levels =
      first.op == OpType::kAllreduce ||
      (!plane.has_queue && !is_transfer(first.op) && first.op != OpType::kAlltoall);
  return algorithm == Algorithm::kCompressed || (has_levels && bytes <= *plane.two_level_max_bytes);
}

bool can_be_cut(const Signature& first, Algorithm algorithm) {
  if (first.op == OpType::kAllreduce) {
    return algorithm == Algorithm::kGroup && is_elementwise(reduction_of(first, 1)) &&
           !has_wide_sums(first);
  }
  return first.op == OpType::kBroadcast ||
         (first.op == OpType::kAllgather && algorithm == Algorithm::kGroup);
}

const char* name_of(const Signature& first, const Route& route, const PlaneFacts& plane) {
  switch (route.algorithm) {
    case Algorithm::kAdasum:
      return "ADASUM";
    case Algorithm::kCompressed:
      switch (first.compression->compressor) {
        case Compressor::kInt8:
          return "INT8";
        case Compressor::kInt4:
          return "INT4";
        default:
          return "TOPK";
      }
    default:
      return route.on_levels ? "GRID" : plane.flat_name;
  }
}

}  // namespace

std::optional<Route> route(const Signature& first, std::uint64_t bytes, const RouteFacts& facts) {
  const std::optional<Carrier> carrier = carrier_of(first, facts);
  if (!carrier.has_value()) {
    return std::nullopt;
  }
  const PlaneFacts& plane = *carrier == Carrier::kNccl ? *facts.own : facts.host;
  Route found{.carrier = *carrier, .algorithm = algorithm_of(first, facts)};
  found.on_levels = runs_on_levels(first, bytes, found.algorithm, plane);
  found.has_queue = plane.has_queue;
  if (*carrier == Carrier::kStaged && bytes > facts.piece_bytes &&
      can_be_cut(first, found.algorithm)) {
    found.piece_bytes = facts.piece_bytes;
  }
  found.name = name_of(first, found, plane);
  return found;
}

}  // namespace lightcc
