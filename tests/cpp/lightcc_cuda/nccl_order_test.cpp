// Operations of many communicators on GPUs that have room for one operation at a time.
#include <cstddef>
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

using namespace testing;  // NOLINT(google-build-using-namespace)

constexpr int kRanks = 2;

/// Sums many tensors, each in a bucket of its own. Returns how many streams NCCL has had.
int streams_of_job(const std::string& nccl, const std::string& asked = "") {
  JobOptions options = on_one_host(kRanks);
  options.environment = {{"LIGHT_NUM_STREAMS", "4"}};
  if (!asked.empty()) {
    options.environment["NCCL_LAUNCH_ORDER_IMPLICIT"] = asked;
  }
  options.adjust = [](Knobs& knobs) { knobs.nccl_timeout_s = 5; };
  int streams = 0;
  fake::set_nccl(nccl);
  run_nccl_job(std::move(options), [&](World& world, int rank) {
    const Framework framework(rank);
    std::vector<Tensor> tensors;
    tensors.reserve(8);
    std::vector<Operation> operations;
    for (std::size_t i = 0; i < 8; ++i) {
      tensors.emplace_back(framework, numbers_of(rank));
      operations.push_back(tensors.back().in(OpType::kAllreduce, "t" + std::to_string(i)));
      operations.back().request.signature.fusion = {FusionRule::kNone, 0};
    }
    // All at once: one that has ended before the next begins leaves a lane to it.
    (void)value(world.wait(value(world.start(std::move(operations), {})), {}));
    for (const Tensor& tensor : tensors) {
      EXPECT_EQ(tensor.read(), sums_of({0, 1}));
    }
    if (rank == 0) {
      streams = fake::streams_of_nccl();
    }
  });
  return streams;
}

TEST(NcclOrder, operations_of_all_communicators_take_turns_on_one_stream) {
  // NCCL could keep the order, but is not asked to.
  EXPECT_EQ(streams_of_job("room=1,version=22602"), kRanks);
  EXPECT_EQ(streams_of_job("room=1,version=22602", "0"), kRanks);
  // It is asked to, but does not know of that.
  EXPECT_EQ(streams_of_job("room=1,version=22505", "1"), kRanks);
}

TEST(NcclOrder, each_lane_has_a_stream_where_nccl_keeps_the_order) {
  EXPECT_GT(streams_of_job("room=1,ordered=1,version=22602", "1"), kRanks);
}

}  // namespace
}  // namespace lightcc::cuda::nccl_order_test
