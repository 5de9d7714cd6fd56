// Rows of GPUs in timelines: copies and NCCL's operations of real jobs, on the fakes.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/timeline/timeline.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"
#include "lightcc_cuda/rows/gpu_rows.hpp"

namespace lightcc::cuda::cuda_rows_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

/// An event of a timeline, which has a line of the file. What it does not say is empty, or -1.
struct Slice {
  std::string line;

  std::string text(const std::string& key) const {
    const std::string begin = '"' + key + "\": \"";
    const std::size_t at = line.find(begin);
    return at == std::string::npos
               ? std::string()
               : line.substr(at + begin.size(),
                             line.find('"', at + begin.size()) - at - begin.size());
  }
  double number(const std::string& key) const {
    const std::string begin = '"' + key + "\": ";
    const std::size_t at = line.find(begin);
    return at == std::string::npos ? -1.0 : std::strtod(line.c_str() + at + begin.size(), nullptr);
  }
  /// Microseconds.
  double begin() const { return number("ts"); }
  double end() const { return begin() + number("dur"); }
};

class TimelineFile {
 public:
  explicit TimelineFile(const std::string& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file.is_open()) << path;
    std::map<double, std::string> rows;
    for (std::string line; std::getline(file, line);) {
      const Slice event{line};
      const double pid = event.number("pid");
      if (event.text("name") == "process_name") {
        rows[pid] = Slice{line.substr(line.find("\"args\""))}.text("name");
      } else if (event.text("name") == "lightcc_device") {
        double& error = errors_[rows.at(pid)];
        error = std::max(error, event.number("error_us"));
      } else if (event.text("ph") == "X" && line.find("\"tensors\"") != std::string::npos) {
        slices_[rows.at(pid)].push_back(event);
      }
    }
  }

  /// In the order of the file.
  std::vector<Slice> on(const std::string& row) const {
    return slices_.contains(row) ? slices_.at(row) : std::vector<Slice>();
  }
  /// The only one.
  Slice one_on(const std::string& row) const {
    EXPECT_EQ(on(row).size(), 1U) << row;
    return on(row).empty() ? Slice() : on(row).front();
  }
  /// Slices on rows of GPUs.
  std::size_t of_gpus() const {
    std::size_t count = 0;
    for (const auto& [row, slices] : slices_) {
      count += row.starts_with("GPU") ? slices.size() : 0;
    }
    return count;
  }
  /// What times of the row are wrong by at most; it has said that.
  double error_of(const std::string& row) const {
    EXPECT_TRUE(errors_.contains(row)) << row;
    return errors_.contains(row) ? errors_.at(row) : 0.0;
  }

 private:
  std::map<std::string, std::vector<Slice>> slices_;
  std::map<std::string, double> errors_;
};

/// Behind what the framework's stream has been given.
Operation behind(const World& world, const Framework& framework, Operation operation) {
  const Timing timing = world.is_recording() ? Timing::kKnown : Timing::kUnknown;
  operation.ready = framework.ready_event(timing);
  return operation;
}

/// Sums ones of each rank, after the framework's stream has written them.
void reduce(World& world,
            const Framework& framework,
            const std::string& name,
            std::size_t count = 1000,
            const std::optional<CompressionSpec>& compression = {}) {
  Tensor tensor(framework, Numbers(count));
  tensor.write(Numbers(count, 1.0F));
  Operation operation = tensor.in(OpType::kAllreduce, name);
  operation.request.signature.compression = compression;
  (void)value(run_one(world, behind(world, framework, std::move(operation))));
  if (!compression.has_value()) {
    EXPECT_EQ(tensor.read(), Numbers(count, static_cast<float>(world.topology().size)));
  }
}

/// Jobs write timelines to a folder, which goes with the test.
class CudaRows : public ::testing::Test {
 protected:
  CudaRows() {
    std::string pattern = std::filesystem::temp_directory_path() / "rows-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    fake::set("");
    fake::set_nccl("");
  }
  ~CudaRows() override { std::filesystem::remove_all(folder_); }

  void start(World& world, const std::string& name = "t.json") const {
    const Status started = world.start_timeline({.path = folder_ / name, .all_ranks = true});
    ASSERT_TRUE(started.ok()) << started.message();
  }
  /// Reduces tensors while there is a timeline: 1000 elements of each, and 3000 of "b".
  void record(World& world,
              const Framework& framework,
              const std::vector<std::string>& tensors,
              const std::string& file = "t.json") const {
    start(world, file);
    for (const std::string& tensor : tensors) {
      reduce(world, framework, tensor, tensor == "b" ? 3000 : 1000);
    }
    world.stop_timeline();
  }
  TimelineFile file(int rank = 0, const std::string& name = "t.json") const {
    return TimelineFile(timeline_path(folder_ / name, rank));
  }

 private:
  std::filesystem::path folder_;
};

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
    const Slice& slice = slices[i];
    EXPECT_EQ(slice.text("name"), name);
    EXPECT_EQ(slice.number("bucket_bytes"), i == 0 ? 4000 : 12000);
    if (name != "NCCL_ALLREDUCE") {
      EXPECT_EQ(slice.number("bytes"), slice.number("bucket_bytes"));
      EXPECT_LE(slice.end(), buckets[i].end() + error);
    }
    EXPECT_EQ(slice.text("tensor"), i == 0 ? "allreduce.a" : "allreduce.b");
    EXPECT_EQ(slice.text("failed"), "");
    EXPECT_GE(slice.begin(), std::max(before, buckets[i].begin() - error));
    EXPECT_GT(slice.end(), slice.begin());
    before = slice.end();
  }
  EXPECT_LT(slices[0].number("sequence"), slices[1].number("sequence"));
}

/// Inputs were ready before their operation began, and the operation knows whose they are.
void expect_inputs_before(const TimelineFile& file, const std::string& row) {
  const std::vector<Slice> ready = file.on("GPU 0 inputs");
  const std::vector<Slice> slices = file.on(row);
  ASSERT_EQ(ready.size(), 2U);
  ASSERT_EQ(slices.size(), 2U);
  for (std::size_t i = 0; i < ready.size(); ++i) {
    EXPECT_EQ(ready[i].begin(), ready[i].end());
    EXPECT_LE(ready[i].begin(), slices[i].begin() + 0.01);
    EXPECT_EQ(ready[i].number("sequence"), slices[i].number("sequence"));
    EXPECT_EQ(ready[i].text("what"), "ready");
  }
  // The second tensor was written when the first one was reduced.
  EXPECT_GT(ready[1].begin() + file.error_of("GPU 0 inputs"), slices[0].end() - file.error_of(row));
}

TEST_F(CudaRows, copies_lie_in_order_within_their_buckets) {
  fake::set("delay_us=300");
  run_gpu_job(on_one_host(2), [&](World& world, int /*rank*/) {
    const Framework framework;
    reduce(world, framework, "before");
    record(world, framework, {"a", "b"});
    reduce(world, framework, "after");
  });
  for (const int rank : {0, 1}) {
    const TimelineFile file = this->file(rank);
    for (const std::string direction : {"to host", "to device"}) {
      expect_in_order(file, "GPU 0 " + direction, "SHM_ALLREDUCE");
      EXPECT_EQ(file.on("GPU 0 " + direction).front().text("what"), "copy " + direction);
    }
    expect_inputs_before(file, "GPU 0 to host");
    EXPECT_EQ(file.of_gpus(), 6U);
  }
}

TEST_F(CudaRows, operations_of_nccl_lie_in_order) {
  run_nccl_job_on_tensors(on_one_host(2),
                          [&](const RankOnGpu& on) { record(on.world, on.framework, {"a", "b"}); });
  const TimelineFile file = this->file();
  expect_in_order(file, "GPU 0 NCCL", "NCCL_ALLREDUCE");
  expect_inputs_before(file, "GPU 0 NCCL");
  EXPECT_EQ(file.of_gpus(), 4U);
  EXPECT_EQ(file.on("GPU 0 NCCL").front().text("what"), "ncclAllReduce");
  EXPECT_EQ(this->file(1).on("GPU 1 NCCL").size(), 2U);
}

TEST_F(CudaRows, streams_of_communicators_have_a_row_each) {
  fake::set_nccl("ordered=1,version=22602");
  JobOptions options = on_one_host(2);
  options.environment = {{"LIGHT_NUM_STREAMS", "2"}, {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}};
  run_nccl_job_on_tensors(std::move(options), [&](const RankOnGpu& on) {
    record(on.world, on.framework, {"a", "b", "c", "d"});
  });
  const TimelineFile file = this->file();
  EXPECT_EQ(file.on("GPU 0 NCCL").size(), file.on("lane 0").size());
  EXPECT_EQ(file.on("GPU 0 NCCL 2").size(), file.on("lane 1").size());
  EXPECT_EQ(file.on("GPU 0 NCCL").size() + file.on("GPU 0 NCCL 2").size(), 4U);
}

TEST_F(CudaRows, two_levels_have_a_slice_for_each_part_of_the_way) {
  JobOptions options = on_hosts({0, 0, 1, 1});
  options.environment["LIGHT_2D_ALLREDUCE"] = "1";
  run_nccl_job_on_tensors(std::move(options),
                          [&](const RankOnGpu& on) { record(on.world, on.framework, {"a"}); });
  const TimelineFile file = this->file();
  const std::vector<Slice> parts = file.on("GPU 0 NCCL");
  ASSERT_GE(parts.size(), 2U);
  for (const Slice& part : parts) {
    EXPECT_EQ(part.text("name"), "GRID_ALLREDUCE");
    EXPECT_EQ(part.number("bucket_bytes"), 4000);
  }
  // Scattered at first, and gathered at last.
  EXPECT_NE(parts.front().text("what"), parts.back().text("what"));
  (void)file.one_on("GPU 0 inputs");
}

TEST_F(CudaRows, compression_on_a_gpu_is_on_the_rows_of_its_streams) {
  JobOptions options = on_hosts({0, 1});
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1";
  run_gpu_job(std::move(options), [&](World& world, int /*rank*/) {
    const Framework framework;
    start(world);
    reduce(world, framework, "a", 1000, CompressionSpec{.ratio = 0.1});
    world.stop_timeline();
  });
  const TimelineFile file = this->file();
  EXPECT_EQ(file.one_on("GPU 0 to host").text("name"), "TOPK_ALLREDUCE");
  EXPECT_EQ(file.one_on("GPU 0 to host").text("what"), "top-k");
  EXPECT_EQ(file.one_on("GPU 0 to device").text("what"), "sum of lists");
  EXPECT_EQ(file.one_on("GPU 0 to device").number("bytes"), 4000);
}

TEST_F(CudaRows, each_gpu_of_a_rank_has_rows) {
  fake::set("devices=2");
  run_gpu_job(on_one_host(2), [&](World& world, int /*rank*/) {
    const Framework first(0);
    const Framework second(1);
    start(world);
    const Tensor tensors[] = {Tensor(first, Numbers(1000)), Tensor(second, Numbers(2000))};
    std::vector<Operation> operations;
    operations.push_back(behind(world, first, tensors[0].in(OpType::kAllreduce, "a")));
    operations.push_back(behind(world, second, tensors[1].in(OpType::kAllreduce, "b")));
    (void)value(run_together(world, std::move(operations)));
    world.stop_timeline();
  });
  const TimelineFile file = this->file();
  for (const std::string gpu : {"GPU 0", "GPU 1"}) {
    for (const std::string row : {" to host", " to device", " inputs"}) {
      EXPECT_EQ(file.one_on(gpu + row).text("tensor"), "allreduce.a") << gpu << row;
      if (row != " inputs") {
        EXPECT_EQ(file.one_on(gpu + row).number("bytes"), gpu == "GPU 0" ? 4000 : 8000);
        EXPECT_EQ(file.one_on(gpu + row).number("bucket_bytes"), 12000);
      }
    }
  }
}

TEST_F(CudaRows, events_know_their_time_while_there_is_a_timeline_and_another_one_may_begin) {
  run_nccl_job_on_tensors(on_one_host(2), [&](const RankOnGpu& on) {
    const auto& [world, rank, framework, tensor] = on;
    EXPECT_FALSE(world.is_recording());
    reduce(world, framework, "before");
    (void)value(run_one(world, tensor.in(OpType::kAllreduce, "staged", ReduceOp::kAdasum)));
    EXPECT_EQ(fake::timed_events(), 0);
    wait_for_all(world);
    start(world, "one.json");
    reduce(world, framework, "a");
    record(world, framework, {"b"}, "two.json");
    EXPECT_FALSE(world.is_recording());
    EXPECT_GT(fake::timed_events(), 0);
    reduce(world, framework, "c");
    record(world, framework, {"d"}, "three.json");
  });
  const std::pair<std::string, std::string> files[] = {
      {"one.json", "allreduce.a"}, {"two.json", "allreduce.b"}, {"three.json", "allreduce.d"}};
  for (const auto& [name, tensor] : files) {
    const TimelineFile file = this->file(0, name);
    EXPECT_EQ(file.one_on("GPU 0 NCCL").text("tensor"), tensor) << name;
    (void)file.one_on("GPU 0 inputs");
  }
}

TEST_F(CudaRows, a_driver_that_does_not_say_the_time_costs_the_rows_alone) {
  ::testing::internal::CaptureStderr();
  run_nccl_job(
      on_one_host(2),
      [&](World& world, int rank) {
        const Framework framework(rank);
        record(world, framework, {"a", "b"});
      },
      "devices=4,fail=cuEventElapsedTime:1:0");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(file().of_gpus(), 0U);
  EXPECT_EQ(file().on("lane 0").size(), 2U);
  const std::string warning = "the timeline lacks 'GPU 0 NCCL' from now on: cuEventElapsedTime";
  EXPECT_NE(said.find(warning), std::string::npos) << said;
  EXPECT_EQ(said.find(warning), said.rfind(warning)) << said;
}

TEST_F(CudaRows, what_nccl_does_not_end_ends_with_the_error) {
  run_nccl_job_on_tensors(on_one_host(2), [&](const RankOnGpu& on) {
    start(on.world);
    reduce(on.world, on.framework, "a");
    wait_for_all(on.world);
    if (on.rank == 0) {
      fake::set_nccl("broken=1");
    }
    wait_for_all(on.world);
    EXPECT_FALSE(run_one(on.world, on.tensor.in(OpType::kAllreduce, "b")).ok());
    on.world.stop_timeline();
  });
  int failed = 0;
  for (const int rank : {0, 1}) {
    const std::vector<Slice> slices = this->file(rank).on("GPU " + std::to_string(rank) + " NCCL");
    ASSERT_GE(slices.size(), 1U);
    EXPECT_EQ(slices[0].text("failed"), "");
    if (slices.size() == 2) {
      ++failed;
      EXPECT_EQ(slices[1].text("tensor"), "allreduce.b");
      EXPECT_NE(slices[1].text("failed"), "");
      EXPECT_GE(slices[1].begin(), slices[0].end());
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
  /// An event that has happened by now.
  static auto event_on(const Framework& framework) {
    auto event = value(record_event(framework.driver(), framework.stream(), Timing::kKnown));
    framework.wait();
    return event;
  }
};

TEST_F(GpuClockTest, an_event_happened_between_the_hosts_moments) {
  fake::set("delay_us=500");
  const Framework framework;
  GpuClock clock(framework.driver(), Clock::system());
  const auto anchor = value(clock.anchor());
  ASSERT_NE(anchor, nullptr);
  for (int i = 0; i < 20; ++i) {
    const TimePoint before = Clock::system().now();
    const auto event = event_on(framework);
    const TimePoint after = Clock::system().now();
    const auto reading = value(clock.time_of(*anchor, event.get()));
    EXPECT_GE(reading.at + reading.error, before);
    EXPECT_LE(reading.at - reading.error, after);
  }
  EXPECT_EQ(value(clock.anchor()), anchor);  // It is not old yet.
}

TEST_F(GpuClockTest, an_anchor_is_renewed_and_says_how_far_clocks_ran_apart) {
  /// A host whose clock is moved by hand beside the real one.
  class MovedClock final : public Clock {
   public:
    TimePoint now() const override { return Clock::system().now() + moved; }
    Duration moved{};
  };
  const Framework framework;
  MovedClock host;
  GpuClock clock(framework.driver(), host);
  const auto first = value(clock.anchor());
  ASSERT_NE(first, nullptr);
  host.moved = std::chrono::seconds(2);  // The GPU's went on by next to nothing.
  const auto second = value(clock.anchor());
  EXPECT_NE(second, first);
  const auto event = event_on(framework);
  EXPECT_GT(value(clock.time_of(*second, event.get())).error, std::chrono::seconds(1));
}

}  // namespace
}  // namespace lightcc::cuda::cuda_rows_test
