// Rows of GPUs in timelines: copies and NCCL's operations of real jobs, on the fakes.
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/log.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/timeline/timeline.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"
#include "lightcc_cuda/rows/gpu_rows.hpp"
#include "lightcc_cuda/timeline_rows.hpp"

namespace lightcc::cuda::cuda_rows_test {
namespace {

using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::on_hosts;
using lightcc::testing::on_one_host;
using lightcc::testing::only;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
using testing::Framework;
using testing::run_gpu_job;
using testing::run_nccl_job;
using testing::Slice;
using testing::Tensor;
using testing::TimelineFile;
using testing::TimelineFolder;
using testing::value;

Timing timing_for(const World& world) {
  return world.is_recording() ? Timing::kKnown : Timing::kUnknown;
}

/// Sums `count` ones of each rank, after the framework's stream has written them.
void reduce(World& world,
            const Framework& framework,
            const std::string& name,
            std::size_t count,
            const CompressionSpec* compression = nullptr) {
  Numbers data(count, 1.0F);
  Tensor tensor(framework, Numbers(count));
  tensor.write(data);
  Operation operation = tensor.put(operation_on(OpType::kAllreduce, name, data));
  operation.request.signature.reduce_op = ReduceOp::kSum;
  if (compression != nullptr) {
    operation.request.signature.compression = *compression;
  }
  operation.ready = framework.ready_event(timing_for(world));
  const auto ended = run_one(world, std::move(operation));
  ASSERT_TRUE(ended.ok()) << ended.status().message();
  if (compression == nullptr) {
    EXPECT_EQ(tensor.read(), Numbers(count, static_cast<float>(world.topology().size)));
  }
}

void start(World& world, const std::string& path) {
  const Status started = world.start_timeline({.path = path, .all_ranks = true});
  ASSERT_TRUE(started.ok()) << started.message();
}

/// Two slices, one after the other, each within its bucket on the lane. One of NCCL's may end
/// later: a bucket ends when the GPU has been given it.
void expect_in_order(const TimelineFile& file, const std::string& row, const std::string& name) {
  SCOPED_TRACE(row);
  const std::vector<Slice> slices = file.on(row);
  const std::vector<Slice> buckets = file.on("lane 0");
  ASSERT_EQ(slices.size(), 2U);
  ASSERT_EQ(buckets.size(), 2U);
  const double error = file.error_of(row);
  EXPECT_GT(error, 0.0);
  double before = 0.0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    EXPECT_EQ(slices[i].name, name);
    EXPECT_EQ(slices[i].bucket_bytes, i == 0 ? 4000 : 12000);
    if (name != "NCCL_ALLREDUCE") {
      EXPECT_EQ(slices[i].bytes, slices[i].bucket_bytes);
      EXPECT_LE(slices[i].end, buckets[i].end + error);
    }
    EXPECT_EQ(slices[i].tensor, i == 0 ? "allreduce.a" : "allreduce.b");
    EXPECT_EQ(slices[i].failed, "");
    EXPECT_GE(slices[i].begin, before);
    EXPECT_GT(slices[i].end, slices[i].begin);
    EXPECT_GE(slices[i].begin, buckets[i].begin - error);
    before = slices[i].end;
  }
  EXPECT_LT(slices[0].sequence, slices[1].sequence);
}

/// Inputs were ready before their operation began, and the operation knows whose they are.
void expect_inputs_before(const TimelineFile& file, const std::string& row) {
  const std::vector<Slice> ready = file.on("GPU 0 inputs");
  const std::vector<Slice> slices = file.on(row);
  ASSERT_EQ(ready.size(), 2U);
  ASSERT_EQ(slices.size(), 2U);
  for (std::size_t i = 0; i < ready.size(); ++i) {
    EXPECT_EQ(ready[i].begin, ready[i].end);
    EXPECT_LE(ready[i].begin, slices[i].begin + 0.01);
    EXPECT_EQ(ready[i].sequence, slices[i].sequence);
    EXPECT_EQ(ready[i].what, "ready");
  }
  // The second tensor was written when the first one was reduced.
  EXPECT_GT(ready[1].begin + file.error_of("GPU 0 inputs"), slices[0].end - file.error_of(row));
}

void reduce_two(World& world, const Framework& framework, const std::string& path) {
  start(world, path);
  reduce(world, framework, "a", 1000);
  reduce(world, framework, "b", 3000);
  world.stop_timeline();
}

TEST(CudaRows, copies_lie_in_order_within_their_buckets) {
  const TimelineFolder folder;
  fake::set("delay_us=300");
  run_gpu_job(on_one_host(2), [&](World& world, int /*rank*/) {
    const Framework framework;
    reduce(world, framework, "before", 500);
    reduce_two(world, framework, folder.path("t.json"));
    reduce(world, framework, "after", 500);
  });
  for (const int rank : {0, 1}) {
    const TimelineFile file(timeline_path(folder.path("t.json"), rank));
    expect_in_order(file, "GPU 0 to host", "SHM_ALLREDUCE");
    expect_in_order(file, "GPU 0 to device", "SHM_ALLREDUCE");
    expect_inputs_before(file, "GPU 0 to host");
    ASSERT_EQ(file.of_gpus().size(), 6U);
    EXPECT_EQ(file.on("GPU 0 to host").front().what, "copy to host");
    EXPECT_EQ(file.on("GPU 0 to device").front().what, "copy to device");
  }
}

TEST(CudaRows, operations_of_nccl_lie_in_order) {
  const TimelineFolder folder;
  fake::set_nccl("");
  run_nccl_job(on_one_host(2), [&](World& world, int rank) {
    const Framework framework(rank);
    reduce_two(world, framework, folder.path("t.json"));
  });
  const TimelineFile file(folder.path("t.json"));
  expect_in_order(file, "GPU 0 NCCL", "NCCL_ALLREDUCE");
  expect_inputs_before(file, "GPU 0 NCCL");
  ASSERT_EQ(file.of_gpus().size(), 4U);
  EXPECT_EQ(file.on("GPU 0 NCCL").front().what, "ncclAllReduce");
  const TimelineFile other(timeline_path(folder.path("t.json"), 1));
  EXPECT_EQ(other.on("GPU 1 NCCL").size(), 2U);
}

TEST(CudaRows, streams_of_communicators_have_a_row_each) {
  const TimelineFolder folder;
  fake::set_nccl("ordered=1,version=22602");
  JobOptions options = on_one_host(2);
  options.environment = {{"LIGHT_NUM_STREAMS", "2"}, {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}};
  run_nccl_job(std::move(options), [&](World& world, int rank) {
    const Framework framework(rank);
    start(world, folder.path("t.json"));
    for (const char* const name : {"a", "b", "c", "d"}) {
      reduce(world, framework, name, 1000);
    }
    world.stop_timeline();
  });
  const TimelineFile file(folder.path("t.json"));
  EXPECT_EQ(file.on("GPU 0 NCCL").size(), file.on("lane 0").size());
  EXPECT_EQ(file.on("GPU 0 NCCL 2").size(), file.on("lane 1").size());
  EXPECT_EQ(file.on("GPU 0 NCCL").size() + file.on("GPU 0 NCCL 2").size(), 4U);
}

TEST(CudaRows, two_levels_have_a_slice_for_each_part_of_the_way) {
  const TimelineFolder folder;
  fake::set_nccl("");
  JobOptions options = on_hosts({0, 0, 1, 1});
  options.environment["LIGHT_2D_ALLREDUCE"] = "1";
  run_nccl_job(std::move(options), [&](World& world, int rank) {
    const Framework framework(rank % 2);
    start(world, folder.path("t.json"));
    reduce(world, framework, "a", 4000);
    world.stop_timeline();
  });
  const TimelineFile file(folder.path("t.json"));
  const std::vector<Slice> parts = file.on("GPU 0 NCCL");
  ASSERT_GE(parts.size(), 2U);
  for (const Slice& part : parts) {
    EXPECT_EQ(part.name, "GRID_ALLREDUCE");
    EXPECT_EQ(part.bucket_bytes, 16000);
  }
  EXPECT_NE(parts.front().what, parts.back().what);  // Scattered at first, and gathered at last.
  EXPECT_EQ(file.on("GPU 0 inputs").size(), 1U);
}

TEST(CudaRows, compression_on_a_gpu_is_on_the_rows_of_its_streams) {
  const TimelineFolder folder;
  const CompressionSpec spec{.ratio = 0.1};
  JobOptions options = on_hosts({0, 1});
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1";
  run_gpu_job(std::move(options), [&](World& world, int /*rank*/) {
    const Framework framework;
    start(world, folder.path("t.json"));
    reduce(world, framework, "a", 1000, &spec);
    world.stop_timeline();
  });
  const TimelineFile file(folder.path("t.json"));
  ASSERT_EQ(file.on("GPU 0 to host").size(), 1U);
  EXPECT_EQ(file.on("GPU 0 to host").front().name, "TOPK_ALLREDUCE");
  EXPECT_EQ(file.on("GPU 0 to host").front().what, "top-k");
  ASSERT_EQ(file.on("GPU 0 to device").size(), 1U);
  EXPECT_EQ(file.on("GPU 0 to device").front().what, "sum of lists");
  EXPECT_EQ(file.on("GPU 0 to device").front().bytes, 4000);
}

TEST(CudaRows, no_event_knows_its_time_without_a_timeline) {
  const TimelineFolder folder;
  fake::set_nccl("");
  run_nccl_job(on_one_host(2), [&](World& world, int rank) {
    const Framework framework(rank);
    EXPECT_FALSE(world.is_recording());
    reduce(world, framework, "a", 1000);
    Numbers data(1000);
    const Tensor tensor(framework, data);
    Operation staged = tensor.put(operation_on(OpType::kAllreduce, "staged", data));
    staged.request.signature.reduce_op = ReduceOp::kAdasum;
    ASSERT_TRUE(run_one(world, std::move(staged)).ok());
    EXPECT_EQ(fake::timed_events(), 0);
    ASSERT_TRUE(run_one(world, lightcc::testing::bare(OpType::kBarrier)).ok());
    reduce_two(world, framework, folder.path("t.json"));
    EXPECT_FALSE(world.is_recording());
    EXPECT_GT(fake::timed_events(), 0);
  });
}

TEST(CudaRows, each_gpu_of_a_rank_has_rows) {
  const TimelineFolder folder;
  fake::set("devices=2");
  run_gpu_job(on_one_host(2), [&](World& world, int /*rank*/) {
    const Framework first(0);
    const Framework second(1);
    start(world, folder.path("t.json"));
    Numbers data(1000);
    Numbers more(2000);
    const Tensor tensors[] = {Tensor(first, data), Tensor(second, more)};
    const Framework* const frameworks[] = {&first, &second};
    std::vector<Operation> operations;
    for (const std::size_t i : {0U, 1U}) {
      Operation operation =
          operation_on(OpType::kAllreduce, i == 0 ? "a" : "b", i == 0 ? data : more);
      operations.push_back(tensors[i].put(std::move(operation)));
      operations.back().ready = frameworks[i]->ready_event(timing_for(world));
    }
    ASSERT_TRUE(lightcc::testing::run_together(world, std::move(operations)).ok());
    world.stop_timeline();
  });
  const TimelineFile file(folder.path("t.json"));
  for (const std::size_t gpu : {0U, 1U}) {
    const std::string of = "GPU " + std::to_string(gpu);
    for (const char* const row : {" to host", " to device", " inputs"}) {
      ASSERT_EQ(file.on(of + row).size(), 1U) << of << row;
      EXPECT_EQ(file.on(of + row).front().tensor, "allreduce.a");
    }
    EXPECT_EQ(file.on(of + " to host").front().bytes, gpu == 0 ? 4000 : 8000);
    EXPECT_EQ(file.on(of + " to host").front().bucket_bytes, 12000);
    EXPECT_EQ(file.on(of + " to device").front().bytes, gpu == 0 ? 4000 : 8000);
  }
}

TEST(CudaRows, a_timeline_may_end_and_another_one_begin) {
  const TimelineFolder folder;
  fake::set_nccl("");
  run_nccl_job(on_one_host(2), [&](World& world, int rank) {
    const Framework framework(rank);
    start(world, folder.path("one.json"));
    reduce(world, framework, "a", 1000);
    start(world, folder.path("two.json"));
    reduce(world, framework, "b", 1000);
    world.stop_timeline();
    reduce(world, framework, "c", 1000);
    start(world, folder.path("three.json"));
    reduce(world, framework, "d", 1000);
    world.stop_timeline();
  });
  const std::pair<std::string, std::string> files[] = {
      {"one.json", "allreduce.a"}, {"two.json", "allreduce.b"}, {"three.json", "allreduce.d"}};
  for (const auto& [name, tensor] : files) {
    const TimelineFile file(folder.path(name));
    ASSERT_EQ(file.on("GPU 0 NCCL").size(), 1U) << name;
    EXPECT_EQ(file.on("GPU 0 NCCL").front().tensor, tensor);
    EXPECT_EQ(file.on("GPU 0 inputs").size(), 1U) << name;
  }
}

Mutex log_mutex;
std::vector<std::string> log_lines LIGHTCC_GUARDED_BY(log_mutex);

void keep_line(LogLevel /*level*/, const std::string& line) {
  const MutexLock lock(log_mutex);
  log_lines.push_back(line);
}

TEST(CudaRows, a_driver_that_does_not_say_the_time_costs_the_rows_alone) {
  const TimelineFolder folder;
  fake::set_nccl("");
  set_log_sink(&keep_line);
  run_nccl_job(
      on_one_host(2),
      [&](World& world, int rank) {
        const Framework framework(rank);
        reduce_two(world, framework, folder.path("t.json"));
      },
      "devices=4,fail=cuEventElapsedTime:1:0");
  set_log_sink(nullptr);
  EXPECT_TRUE(TimelineFile(folder.path("t.json")).of_gpus().empty());
  EXPECT_EQ(TimelineFile(folder.path("t.json")).on("lane 0").size(), 2U);
  const MutexLock lock(log_mutex);
  std::size_t warnings = 0;
  for (const std::string& line : log_lines) {
    warnings += line.find("the timeline lacks 'GPU 0 NCCL' from now on: cuEventElapsedTime") !=
                        std::string::npos
                    ? 1
                    : 0;
  }
  EXPECT_EQ(warnings, 1U);
  log_lines.clear();
}

TEST(CudaRows, what_nccl_does_not_end_ends_with_the_error) {
  const TimelineFolder folder;
  fake::set_nccl("");
  std::string told;
  run_nccl_job(on_one_host(2), [&](World& world, int rank) {
    const Framework framework(rank);
    start(world, folder.path("t.json"));
    reduce(world, framework, "a", 1000);
    ASSERT_TRUE(run_one(world, lightcc::testing::bare(OpType::kBarrier)).ok());
    if (rank == 0) {
      fake::set_nccl("broken=1");
    }
    ASSERT_TRUE(run_one(world, lightcc::testing::bare(OpType::kBarrier)).ok());
    Numbers data(1000);
    const Tensor tensor(framework, data);
    Operation operation = tensor.put(operation_on(OpType::kAllreduce, "b", data));
    const auto ended = run_one(world, std::move(operation));
    EXPECT_FALSE(ended.ok());
    world.stop_timeline();
  });
  int failed = 0;
  for (const int rank : {0, 1}) {
    const TimelineFile file(timeline_path(folder.path("t.json"), rank));
    const std::vector<Slice> slices = file.on("GPU " + std::to_string(rank) + " NCCL");
    ASSERT_GE(slices.size(), 1U);
    EXPECT_EQ(slices[0].failed, "");
    if (slices.size() == 2) {
      ++failed;
      EXPECT_EQ(slices[1].tensor, "allreduce.b");
      EXPECT_NE(slices[1].failed, "");
      EXPECT_GE(slices[1].begin, slices[0].end);
    }
  }
  EXPECT_GE(failed, 1);
}

/// The clock of one GPU, without a world.
class GpuClockTest : public ::testing::Test {
 protected:
  void TearDown() override {
    fake::set("");
    EXPECT_EQ(fake::live(), 0);
  }
};

TEST_F(GpuClockTest, an_event_happened_between_the_hosts_moments) {
  fake::set("delay_us=500");
  const Framework framework;
  GpuClock clock(framework.driver(), Clock::system());
  const auto anchor = clock.anchor();
  ASSERT_TRUE(anchor.ok()) << anchor.status().message();
  ASSERT_NE(*anchor, nullptr);
  for (int i = 0; i < 20; ++i) {
    const TimePoint before = Clock::system().now();
    const auto event = record_event(framework.driver(), framework.stream(), Timing::kKnown);
    ASSERT_TRUE(event.ok());
    framework.wait();
    const TimePoint after = Clock::system().now();
    const auto reading = clock.time_of(**anchor, event->get());
    ASSERT_TRUE(reading.ok()) << reading.status().message();
    EXPECT_GE(reading->at + reading->error, before);
    EXPECT_LE(reading->at - reading->error, after);
  }
  const auto again = clock.anchor();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *anchor);  // It is not old yet.
}

TEST_F(GpuClockTest, an_anchor_is_renewed_and_says_how_far_clocks_ran_apart) {
  /// A host whose clock is moved by hand beside the real one.
  class MovedClock final : public Clock {
   public:
    TimePoint now() const override { return Clock::system().now() + moved; }
    Duration moved{};
  };
  fake::set("");
  const Framework framework;
  MovedClock host;
  GpuClock clock(framework.driver(), host);
  const auto first = clock.anchor();
  ASSERT_TRUE(first.ok());
  ASSERT_NE(*first, nullptr);
  host.moved = std::chrono::seconds(2);  // The GPU's went on by next to nothing.
  const auto second = clock.anchor();
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*second, *first);
  const auto event = record_event(framework.driver(), framework.stream(), Timing::kKnown);
  ASSERT_TRUE(event.ok());
  framework.wait();
  const auto reading = clock.time_of(**second, event->get());
  ASSERT_TRUE(reading.ok());
  EXPECT_GT(reading->error, std::chrono::seconds(1));
}

TEST_F(GpuClockTest, a_call_that_fails_is_named) {
  const Framework framework;
  fake::set("fail=cuEventElapsedTime:1:0");
  GpuClock clock(framework.driver(), Clock::system());
  const auto anchor = clock.anchor();
  ASSERT_TRUE(anchor.ok());
  const auto event = record_event(framework.driver(), framework.stream(), Timing::kKnown);
  ASSERT_TRUE(event.ok());
  framework.wait();
  const auto reading = clock.time_of(**anchor, event->get());
  EXPECT_EQ(reading.status().message().rfind("cuEventElapsedTime", 0), 0U)
      << reading.status().message();
}

}  // namespace
}  // namespace lightcc::cuda::cuda_rows_test
