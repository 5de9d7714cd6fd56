#include "lightcc/engine/route.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::route_test {
namespace {

constexpr std::uint64_t kLevels = 1000;  // Most bytes of what runs on two levels.

const PlaneFacts kShm{.flat_name = "SHM"};
const PlaneFacts kHostLevels{.flat_name = "NET", .two_level_max_bytes = kLevels};
const PlaneFacts kNccl{.flat_name = "NCCL", .has_queue = true};
const PlaneFacts kNcclLevels{
    .flat_name = "NCCL", .two_level_max_bytes = kLevels, .has_queue = true};

Signature signature_of(OpType op, MemoryKind memory) {
  Signature signature;
  signature.op = op;
  signature.memory = memory;
  return signature;
}

Signature compressed(MemoryKind memory, Compressor compressor = Compressor::kTopk) {
  Signature signature = signature_of(OpType::kAllreduce, memory);
  signature.compression = CompressionSpec{.compressor = compressor};
  return signature;
}

Signature compressed_rows(OpType op, MemoryKind memory) {
  Signature signature = signature_of(op, memory);
  signature.compression = CompressionSpec{.compressor = Compressor::kInt8};
  return signature;
}

Signature reduced(MemoryKind memory, ReduceOp op) {
  Signature signature = signature_of(OpType::kAllreduce, memory);
  signature.reduce_op = op;
  return signature;
}

/// A route as a word for each of its parts.
std::string text(const std::optional<Route>& route) {
  if (!route.has_value()) {
    return "nowhere";
  }
  const std::vector<std::string> carriers = {"host", "staged", "device"};
  std::string text = carriers[static_cast<std::size_t>(route->carrier)] + " " + route->name;
  text += route->on_levels ? " levels" : "";
  text += route->has_queue ? " queue" : "";
  return text + (route->piece_bytes > 0 ? " pieces of " + std::to_string(route->piece_bytes) : "");
}

struct Row {
  Signature first;
  std::uint64_t bytes;
  RouteFacts facts;
  std::string expected;
};

void expect(const std::vector<Row>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(text(route(rows[i].first, rows[i].bytes, rows[i].facts)), rows[i].expected)
        << "row " << i;
  }
}

TEST(Route, of_host_memory) {
  const auto op = [](OpType type) { return signature_of(type, MemoryKind::kHost); };
  const RouteFacts flat{.host = kShm};
  const RouteFacts levels{.host = kHostLevels, .may_compress = true};
  const Signature adasum = reduced(MemoryKind::kHost, ReduceOp::kAdasum);
  expect({
      {op(OpType::kAllreduce), 1, flat, "host SHM"},
      {op(OpType::kAllreduce), kLevels, levels, "host GRID levels"},
      {op(OpType::kAllreduce), kLevels + 1, levels, "host NET"},
      {op(OpType::kReducescatter), 1, levels, "host GRID levels"},
      {op(OpType::kAllgather), 1, levels, "host GRID levels"},
      {op(OpType::kBroadcast), 1, levels, "host GRID levels"},
      {op(OpType::kAlltoall), 1, levels, "host NET"},
      {op(OpType::kSend), 1, levels, "host NET"},
      {op(OpType::kRecv), 1, levels, "host NET"},
      {adasum, 1, flat, "host ADASUM"},
      {adasum, 1, levels, "host ADASUM"},
      {compressed(MemoryKind::kHost), 1, flat, "host SHM"},  // The set does not compress.
      {compressed(MemoryKind::kHost), kLevels + 1, levels, "host TOPK levels"},
      {compressed(MemoryKind::kHost, Compressor::kInt8), 1, levels, "host INT8 levels"},
      {compressed(MemoryKind::kHost, Compressor::kInt4),
       1,
       {.host = kShm, .may_compress = true},
       "host INT4"},
      // Nothing is copied, so nothing is cut.
      {op(OpType::kAllreduce),
       100,
       {.host = kShm, .may_stage = true, .piece_bytes = 10},
       "host SHM"},
  });
}

TEST(Route, of_staged_memory) {
  const auto op = [](OpType type) { return signature_of(type, MemoryKind::kCuda); };
  const RouteFacts whole{.host = kHostLevels, .may_stage = true, .may_compress = true};
  RouteFacts pieces = whole;
  pieces.piece_bytes = 10;
  Signature bytes = reduced(MemoryKind::kCuda, ReduceOp::kAverage);
  bytes.dtype = DataType::kInt8;
  expect({
      {op(OpType::kAllreduce), 1, {.host = kHostLevels}, "nowhere"},
      {op(OpType::kAllreduce), 100, whole, "staged GRID levels"},
      {op(OpType::kAllreduce), 10, pieces, "staged GRID levels"},
      {op(OpType::kAllreduce), 11, pieces, "staged GRID levels pieces of 10"},
      {op(OpType::kAllreduce), kLevels + 1, pieces, "staged NET pieces of 10"},
      {op(OpType::kBroadcast), 11, pieces, "staged GRID levels pieces of 10"},
      {op(OpType::kAllgather), 11, pieces, "staged GRID levels pieces of 10"},
      {op(OpType::kReducescatter), 11, pieces, "staged GRID levels"},
      {op(OpType::kAlltoall), 11, pieces, "staged NET"},
      {op(OpType::kSend), 11, pieces, "staged NET"},
      {reduced(MemoryKind::kCuda, ReduceOp::kAverage),
       11,
       pieces,
       "staged GRID levels pieces of 10"},
      {bytes, 11, pieces, "staged GRID levels"},  // Its sums are wider than a piece.
      {reduced(MemoryKind::kCuda, ReduceOp::kAdasum), 11, pieces, "staged ADASUM"},
      {compressed(MemoryKind::kCuda), 11, pieces, "staged TOPK levels"},
      {compressed_rows(OpType::kAllgather, MemoryKind::kCuda), 11, pieces, "staged INT8 levels"},
      {compressed_rows(OpType::kReducescatter, MemoryKind::kCuda),
       11,
       pieces,
       "staged INT8 levels"},
  });
}

TEST(Route, of_memory_with_a_plane_of_its_own) {
  const auto op = [](OpType type) { return signature_of(type, MemoryKind::kCuda); };
  const RouteFacts flat{.host = kHostLevels,
                        .own = kNccl,
                        .may_stage = true,
                        .may_compress = true,
                        .piece_bytes = 10};
  RouteFacts levels = flat;
  levels.own = kNcclLevels;
  RouteFacts refused = flat;  // The plane does not take such tensors.
  refused.own.reset();
  RouteFacts alone = flat;
  alone.may_stage = false;
  expect({
      {op(OpType::kAllreduce), 100, flat, "device NCCL queue"},
      {op(OpType::kAllreduce), kLevels, levels, "device GRID levels queue"},
      {op(OpType::kAllreduce), kLevels + 1, levels, "device NCCL queue"},
      {op(OpType::kAllgather), 1, levels, "device NCCL queue"},
      {op(OpType::kReducescatter), 1, levels, "device NCCL queue"},
      {op(OpType::kAllreduce), 100, refused, "staged GRID levels pieces of 10"},
      {compressed(MemoryKind::kCuda), 100, flat, "staged TOPK levels"},
      {compressed(MemoryKind::kCuda), kLevels + 1, levels, "device TOPK levels queue"},
      {compressed(MemoryKind::kCuda), 100, alone, "device TOPK queue"},
      {compressed_rows(OpType::kAllgather, MemoryKind::kCuda), 1, levels, "staged INT8 levels"},
      {compressed_rows(OpType::kReducescatter, MemoryKind::kCuda), 1, alone, "device NCCL queue"},
      {signature_of(OpType::kAllreduce, MemoryKind::kHost), 1, flat, "host GRID levels"},
  });
}

TEST(Route, says_whose_plane_it_takes) {
  EXPECT_EQ(Route{.carrier = Carrier::kHost}.plane(MemoryKind::kHost), MemoryKind::kHost);
  EXPECT_EQ(Route{.carrier = Carrier::kStaged}.plane(MemoryKind::kCuda), MemoryKind::kHost);
  EXPECT_EQ(Route{.carrier = Carrier::kNccl}.plane(MemoryKind::kCuda), MemoryKind::kCuda);
}

}  // namespace
}  // namespace lightcc::route_test
