// Operations of many communicators on GPUs that have room for one operation at a time.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"

namespace lightcc::cuda::nccl_order_test {
namespace {

using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
using lightcc::testing::on_one_host;
using lightcc::testing::operation_on;
using testing::Framework;
using testing::run_nccl_job;
using testing::Tensor;

constexpr int kRanks = 2;

JobOptions options() {
  JobOptions options = on_one_host(kRanks);
  options.environment = {{"LIGHT_NUM_STREAMS", "4"}};
  options.adjust = [](Knobs& knobs) { knobs.nccl_timeout_s = 5; };
  return options;
}

/// Sums many tensors, each in a bucket of its own. Returns how many streams NCCL has had.
int streams_of_job(JobOptions options, const std::string& nccl_settings) {
  int streams = 0;
  fake::set_nccl(nccl_settings);
  run_nccl_job(std::move(options), [&](World& world, int rank) {
    const Framework framework(rank);
    std::vector<Numbers> data(16, numbers_of(rank));
    std::vector<Tensor> tensors;
    tensors.reserve(data.size());
    std::vector<Operation> operations;
    operations.reserve(data.size());
    for (std::size_t i = 0; i < data.size(); ++i) {
      Operation& operation = operations.emplace_back(
          tensors.emplace_back(framework, data[i])
              .put(operation_on(OpType::kAllreduce, "t" + std::to_string(i), data[i])));
      operation.request.signature.reduce_op = ReduceOp::kSum;
      operation.request.signature.fusion = {FusionRule::kNone, 0};
    }
    // All at once: one that has ended before the next begins leaves a lane to it.
    const auto handle = world.start(std::move(operations), {});
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    const auto ended = world.wait(*handle, {});
    ASSERT_TRUE(ended.ok()) << ended.status().message();
    Numbers expected = numbers_of(0);
    std::ranges::transform(expected, numbers_of(1), expected.begin(), std::plus<>());
    for (const Tensor& tensor : tensors) {
      EXPECT_EQ(tensor.read(), expected);
    }
    if (rank == 0) {
      streams = fake::streams_of_nccl();
    }
  });
  return streams;
}

TEST(NcclOrder, operations_of_all_communicators_take_turns_on_one_stream) {
  EXPECT_EQ(streams_of_job(options(), "room=1"), kRanks);
  // NCCL could keep the order, but is not asked to.
  EXPECT_EQ(streams_of_job(options(), "room=1,version=22602"), kRanks);
  JobOptions asked = options();
  asked.environment["NCCL_LAUNCH_ORDER_IMPLICIT"] = "0";
  EXPECT_EQ(streams_of_job(asked, "room=1,version=22602"), kRanks);
  // It is asked to, but does not know of that.
  asked.environment["NCCL_LAUNCH_ORDER_IMPLICIT"] = "1";
  EXPECT_EQ(streams_of_job(asked, "room=1,version=22505"), kRanks);
}

TEST(NcclOrder, each_lane_has_a_stream_where_nccl_keeps_the_order) {
  JobOptions asked = options();
  asked.environment["NCCL_LAUNCH_ORDER_IMPLICIT"] = "1";
  EXPECT_GT(streams_of_job(asked, "room=1,ordered=1,version=22602"), kRanks);
}

}  // namespace
}  // namespace lightcc::cuda::nccl_order_test
