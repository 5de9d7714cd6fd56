// Buckets run on the plane of their tensors' memory, with a second plane beside the host's.
#include "lightcc/engine/plane.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "doubles/net_plane.hpp"
#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"

namespace lightcc::plane_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

constexpr int kRanks = 4;

/// Two blocks of two on one host.
JobOptions with_planes(const std::function<std::vector<PlaneMaker>(int rank)>& planes) {
  JobOptions options = in_blocks(2, on_one_host(kRanks));
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1K";
  options.planes = planes;
  return options;
}

/// Every rank has a second plane, whose use is counted.
struct Uses {
  std::array<std::shared_ptr<NetPlaneUse>, kRanks> of;

  Uses() {
    for (auto& use : of) {
      use = std::make_shared<NetPlaneUse>();
    }
  }
  NetPlaneUse& at(int rank) const { return *of[static_cast<std::size_t>(rank)]; }
  JobOptions job() const {
    return with_planes(
        [of = of](int rank) { return std::vector{net_plane(of[static_cast<std::size_t>(rank)])}; });
  }
};

/// At its end, all ranks meet: one that leaves ends the world for all.
class Together {
 public:
  explicit Together(World& world) : world_(world) {}
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;
  ~Together() { EXPECT_TRUE(run_one(world_, testing::bare(OpType::kBarrier)).ok()); }

 private:
  World& world_;
};

Operation in_memory(Operation operation, MemoryKind kind) {
  operation.input.memory.kind = kind;
  if (operation.output.has_value()) {
    operation.output->memory.kind = kind;
  }
  return operation;
}

/// The result of `operation`, whose output the engine makes.
Numbers result_of(World& world, Operation operation) {
  operation.output.reset();
  const auto outcomes = run_one(world, std::move(operation));
  EXPECT_TRUE(outcomes.ok()) << outcomes.status().message();
  if (!outcomes.ok()) {
    return {};
  }
  OutputBuffer& output = *outcomes->front().output;
  const auto* const first = reinterpret_cast<const float*>(output.data());
  return {first, first + output.size_bytes() / sizeof(float)};
}

TEST(Planes, give_the_same_results_for_every_operation) {
  const Uses uses;
  run_job(uses.job(), [&](World& world, int rank) {
    for_every_operation(rank, [&](const std::string& name, const Operation& operation) {
      const int allocations = uses.at(rank).allocations;
      const Numbers expected = result_of(world, operation);
      EXPECT_EQ(uses.at(rank).allocations, allocations) << name;
      const Numbers got = result_of(world, in_memory(operation, MemoryKind::kCuda));
      EXPECT_EQ(got, expected) << name << ", rank " << rank;
      EXPECT_EQ(uses.at(rank).allocations, allocations + 1) << name;
    });
    EXPECT_EQ(uses.at(rank).adasums, 1);
    EXPECT_EQ(uses.at(rank).copies, rank == 2 ? 1 : 0);  // By the root of the broadcast.
  });
}

TEST(Planes, carry_messages) {
  const Uses uses;
  run_job(uses.job(), [&](World& world, int rank) {
    const Together together(world);
    if (rank > 1) {
      return;
    }
    Numbers data = numbers_of(rank);
    Operation operation =
        in_memory(operation_on(rank == 0 ? OpType::kSend : OpType::kRecv, "message", data),
                  MemoryKind::kCuda);
    operation.request.signature.root_or_peer = 1 - rank;
    ASSERT_TRUE(run_one(world, std::move(operation)).ok());
    EXPECT_EQ(data, numbers_of(0));
  });
}

TEST(Planes, have_groups_of_their_own_for_each_process_set) {
  const Uses uses;
  JobOptions options = uses.job();
  options.process_sets = {{0, 1}};  // They share memory.
  run_job(options, [](World& world, int rank) {
    const Together together(world);
    if (rank > 1) {
      return;
    }
    std::vector<std::uint64_t> sent;
    for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kCuda}) {
      Numbers data = numbers_of(rank);
      Operation operation = in_memory(operation_on(OpType::kAllreduce, "t", data), kind);
      operation.request.signature.process_set = 1;
      operation.request.signature.reduce_op = ReduceOp::kSum;
      const std::uint64_t before = world.stats().network_bytes_sent;
      ASSERT_TRUE(run_one(world, std::move(operation)).ok());
      sent.push_back(world.stats().network_bytes_sent - before);
      Numbers expected = numbers_of(0);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] += numbers_of(1)[i];
      }
      EXPECT_EQ(data, expected);
    }
    EXPECT_EQ(sent[0], 0U);
    EXPECT_GE(sent[1], numbers_of(rank).size() * sizeof(float));
  });
}

TEST(Planes, share_no_bucket_but_a_group_may_span_them) {
  const Uses uses;
  run_job(uses.job(), [](World& world, int rank) {
    std::vector<Numbers> data(6, numbers_of(rank));
    std::vector<Operation> operations;
    for (std::size_t i = 0; i < data.size(); ++i) {
      operations.push_back(
          in_memory(operation_on(OpType::kAllreduce, "t" + std::to_string(i), data[i]),
                    i % 2 == 0 ? MemoryKind::kHost : MemoryKind::kCuda));
      operations.back().request.signature.reduce_op = ReduceOp::kMax;
    }
    const std::uint64_t buckets = world.stats().buckets;
    const auto handle =
        world.start(std::move(operations), {.grouping = Grouping::kNamedMembers, .waits = true});
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    ASSERT_TRUE(world.wait(*handle, {}).ok());
    EXPECT_GE(world.stats().buckets - buckets, 2U);
    Numbers expected = numbers_of(0);
    for (int other = 1; other < kRanks; ++other) {
      std::ranges::transform(expected, numbers_of(other), expected.begin(), [](float a, float b) {
        return std::max(a, b);
      });
    }
    for (const Numbers& result : data) {
      EXPECT_EQ(result, expected);
    }
  });
}

TEST(Planes, ranks_that_bring_different_memory_get_an_error_that_says_so) {
  const Uses uses;
  run_job(uses.job(), [](World& world, int rank) {
    Numbers data = numbers_of(rank);
    const auto result = run_one(world,
                                in_memory(operation_on(OpType::kAllreduce, "t", data),
                                          rank == 3 ? MemoryKind::kCuda : MemoryKind::kHost));
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), ErrorCode::kMismatch);
    EXPECT_NE(result.status().message().find("Mismatched memory"), std::string::npos)
        << result.status().message();
    EXPECT_NE(result.status().message().find("host memory"), std::string::npos);
    EXPECT_NE(result.status().message().find("cuda memory"), std::string::npos);
    EXPECT_EQ(data, numbers_of(rank));
    EXPECT_TRUE(run_one(world, operation_on(OpType::kAllreduce, "next", data)).ok());
  });
}

/// What two tensors are after some compressed steps in the memory that `kind_at` says.
std::vector<Numbers> train(World& world,
                           int rank,
                           MemoryKind (*kind_at)(int step),
                           const CompressionSpec& spec) {
  std::vector<Numbers> results;
  for (int step = 0; step < 6; ++step) {
    for (const char* name : {"a", "b"}) {
      Numbers data = numbers_of(rank + step, 4000);
      Operation operation = in_memory(operation_on(OpType::kAllreduce, name, data), kind_at(step));
      operation.request.signature.compression = spec;
      const auto ended = run_one(world, std::move(operation));
      EXPECT_TRUE(ended.ok()) << ended.status().message();
      results.push_back(std::move(data));
    }
  }
  return results;
}

TEST(Planes, compress_in_host_memory_whatever_memory_a_tensor_is_in) {
  const CompressionSpec specs[] = {{.ratio = 0.01, .momentum = 0.5},
                                   {.ratio = 1.0, .momentum = 0.5},
                                   {.compressor = Compressor::kInt8},
                                   {.compressor = Compressor::kInt4}};
  for (const CompressionSpec& spec : specs) {
    std::array<std::vector<Numbers>, kRanks> expected;
    run_job(with_planes({}), [&](World& world, int rank) {
      expected[static_cast<std::size_t>(rank)] =
          train(world, rank, [](int) { return MemoryKind::kHost; }, spec);
    });
    const Uses uses;
    run_job(uses.job(), [&](World& world, int rank) {
      const auto got = train(
          world,
          rank,
          [](int step) { return step % 3 == 0 ? MemoryKind::kHost : MemoryKind::kCuda; },
          spec);
      EXPECT_EQ(got, expected[static_cast<std::size_t>(rank)])
          << compressor_name(spec.compressor) << ", ratio " << spec.ratio;
    });
  }
}

TEST(Planes, memory_that_nothing_here_serves_is_refused_on_the_rank_that_brought_it) {
  run_job(on_one_host(2), [](World& world, int rank) {
    Numbers data = numbers_of(rank);
    if (rank == 1) {
      const auto refused =
          run_one(world, in_memory(operation_on(OpType::kAllreduce, "t", data), MemoryKind::kCuda));
      EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(refused.status().message(),
                "Allreduce 't' on rank 1: the input tensor lies in cuda:0 memory, which nothing "
                "here serves; served is host memory.");
    }
    EXPECT_TRUE(run_one(world, operation_on(OpType::kAllreduce, "t", data)).ok());
  });
}

TEST(Planes, a_joined_rank_that_lacks_the_plane_ends_the_world_and_says_why) {
  const JobOptions options = with_planes(
      [](int rank) { return rank == 3 ? std::vector<PlaneMaker>() : std::vector{net_plane()}; });
  run_job(options, [](World& world, int rank) {
    Numbers data = numbers_of(rank);
    const auto ended = run_one(
        world,
        rank == 3 ? testing::bare(OpType::kJoin)
                  : in_memory(operation_on(OpType::kAllreduce, "t", data), MemoryKind::kCuda));
    ASSERT_FALSE(ended.ok());
    EXPECT_NE(ended.status().message().find("rank 3 has joined and cannot take part in"),
              std::string::npos)
        << ended.status().message();
    EXPECT_NE(ended.status().message().find("cuda memory"), std::string::npos);
  });
}

TEST(Planes, serve_one_kind_each) {
  WorldOptions options;
  options.planes = {net_plane(), net_plane()};
  const auto world = World::create(std::move(options));
  EXPECT_EQ(world.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.status().message(), "two planes serve cuda memory; one is allowed");
}

}  // namespace
}  // namespace lightcc::plane_test
