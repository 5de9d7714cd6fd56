// Rows of GPUs in timelines: copies and NCCL's operations of real jobs, on the fakes.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
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

namespace lightcc::cuda::cuda_rows_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

/// Times are microseconds.
struct Slice {
  std::string row;
  std::string name;
  std::string what;
  std::string tensor;
  std::string failed;
  std::int64_t bytes = 0;  // -1: it does not say.
  std::int64_t bucket_bytes = 0;
  std::int64_t sequence = -1;
  double begin = 0;
  double end = 0;
};

/// One file. Each event has a line of its own.
class TimelineFile {
 public:
  explicit TimelineFile(const std::string& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file.is_open()) << path;
    std::map<std::int64_t, std::string> rows;
    for (std::string line; std::getline(file, line);) {
      const std::int64_t pid = number(line, "pid");
      if (text(line, "name") == "process_name" && line.find("{\"name\"", 1) != std::string::npos) {
        rows[pid] = text(line.substr(line.find("\"args\"")), "name");
      } else if (text(line, "name") == "lightcc_device") {
        double& error = errors_[rows.at(pid)];
        error = std::max(error, real(line, "error_us"));
      } else if (text(line, "ph") == "X" && line.find("\"tensors\"") != std::string::npos) {
        const double begin = real(line, "ts");
        slices_.push_back({.row = rows.at(pid),
                           .name = text(line, "name"),
                           .what = text(line, "what"),
                           .tensor = text(line, "tensor"),
                           .failed = text(line, "failed"),
                           .bytes = number(line, "bytes"),
                           .bucket_bytes = number(line, "bucket_bytes"),
                           .sequence = number(line, "sequence"),
                           .begin = begin,
                           .end = begin + real(line, "dur")});
      }
    }
  }

  /// In the order of the file.
  std::vector<Slice> on(const std::string& row) const {
    std::vector<Slice> found;
    std::ranges::copy_if(
        slices_, std::back_inserter(found), [&](const Slice& slice) { return slice.row == row; });
    return found;
  }
  /// Slices on rows of GPUs.
  std::ptrdiff_t of_gpus() const {
    return std::ranges::count_if(slices_, [](const Slice& s) { return s.row.starts_with("GPU"); });
  }
  /// What times of the row are wrong by at most; it has said that.
  double error_of(const std::string& row) const {
    EXPECT_TRUE(errors_.contains(row)) << row;
    return errors_.contains(row) ? errors_.at(row) : 0.0;
  }

 private:
  static std::string text(const std::string& line, const std::string& key) {
    const std::string begin = '"' + key + "\": \"";
    const std::size_t at = line.find(begin);
    return at == std::string::npos
               ? std::string()
               : line.substr(at + begin.size(),
                             line.find('"', at + begin.size()) - at - begin.size());
  }
  static double real(const std::string& line, const std::string& key) {
    const std::string begin = '"' + key + "\": ";
    const std::size_t at = line.find(begin);
    return at == std::string::npos ? -1.0 : std::strtod(line.c_str() + at + begin.size(), nullptr);
  }
  static std::int64_t number(const std::string& line, const std::string& key) {
    return static_cast<std::int64_t>(real(line, key));
  }

  std::vector<Slice> slices_;
  std::map<std::string, double> errors_;
};

Timing timing_for(const World& world) {
  return world.is_recording() ? Timing::kKnown : Timing::kUnknown;
}

/// Sums `count` ones of each rank, after the framework's stream has written them.
void reduce(World& world,
            const Framework& framework,
            const std::string& name,
            std::size_t count,
            const CompressionSpec* compression = nullptr) {
  Tensor tensor(framework, Numbers(count));
  tensor.write(Numbers(count, 1.0F));
  Operation operation = tensor.in(OpType::kAllreduce, name);
  if (compression != nullptr) {
    operation.request.signature.compression = *compression;
  }
  operation.ready = framework.ready_event(timing_for(world));
  (void)value(run_one(world, std::move(operation)));
  if (compression == nullptr) {
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
  void reduce_two(World& world, const Framework& framework) const {
    start(world);
    reduce(world, framework, "a", 1000);
    reduce(world, framework, "b", 3000);
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

TEST_F(CudaRows, copies_lie_in_order_within_their_buckets) {
  fake::set("delay_us=300");
  run_gpu_job(on_one_host(2), [&](World& world, int /*rank*/) {
    const Framework framework;
    reduce(world, framework, "before", 500);
    reduce_two(world, framework);
    reduce(world, framework, "after", 500);
  });
  for (const int rank : {0, 1}) {
    const TimelineFile file = this->file(rank);
    expect_in_order(file, "GPU 0 to host", "SHM_ALLREDUCE");
    expect_in_order(file, "GPU 0 to device", "SHM_ALLREDUCE");
    expect_inputs_before(file, "GPU 0 to host");
    EXPECT_EQ(file.of_gpus(), 6);
    EXPECT_EQ(file.on("GPU 0 to host").front().what, "copy to host");
    EXPECT_EQ(file.on("GPU 0 to device").front().what, "copy to device");
  }
}

TEST_F(CudaRows, operations_of_nccl_lie_in_order) {
  run_nccl_job(on_one_host(2), [&](World& world, int rank) {
    const Framework framework(rank);
    reduce_two(world, framework);
  });
  const TimelineFile file = this->file();
  expect_in_order(file, "GPU 0 NCCL", "NCCL_ALLREDUCE");
  expect_inputs_before(file, "GPU 0 NCCL");
  EXPECT_EQ(file.of_gpus(), 4);
  EXPECT_EQ(file.on("GPU 0 NCCL").front().what, "ncclAllReduce");
  EXPECT_EQ(this->file(1).on("GPU 1 NCCL").size(), 2U);
}

TEST_F(CudaRows, streams_of_communicators_have_a_row_each) {
  fake::set_nccl("ordered=1,version=22602");
  JobOptions options = on_one_host(2);
  options.environment = {{"LIGHT_NUM_STREAMS", "2"}, {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}};
  run_nccl_job(std::move(options), [&](World& world, int rank) {
    const Framework framework(rank);
    start(world);
    for (const char* const name : {"a", "b", "c", "d"}) {
      reduce(world, framework, name, 1000);
    }
    world.stop_timeline();
  });
  const TimelineFile file = this->file();
  EXPECT_EQ(file.on("GPU 0 NCCL").size(), file.on("lane 0").size());
  EXPECT_EQ(file.on("GPU 0 NCCL 2").size(), file.on("lane 1").size());
  EXPECT_EQ(file.on("GPU 0 NCCL").size() + file.on("GPU 0 NCCL 2").size(), 4U);
}

TEST_F(CudaRows, two_levels_have_a_slice_for_each_part_of_the_way) {
  JobOptions options = on_hosts({0, 0, 1, 1});
  options.environment["LIGHT_2D_ALLREDUCE"] = "1";
  run_nccl_job(std::move(options), [&](World& world, int rank) {
    const Framework framework(rank % 2);
    start(world);
    reduce(world, framework, "a", 4000);
    world.stop_timeline();
  });
  const TimelineFile file = this->file();
  const std::vector<Slice> parts = file.on("GPU 0 NCCL");
  ASSERT_GE(parts.size(), 2U);
  for (const Slice& part : parts) {
    EXPECT_EQ(part.name, "GRID_ALLREDUCE");
    EXPECT_EQ(part.bucket_bytes, 16000);
  }
  EXPECT_NE(parts.front().what, parts.back().what);  // Scattered at first, and gathered at last.
  EXPECT_EQ(file.on("GPU 0 inputs").size(), 1U);
}

TEST_F(CudaRows, compression_on_a_gpu_is_on_the_rows_of_its_streams) {
  const CompressionSpec spec{.ratio = 0.1};
  JobOptions options = on_hosts({0, 1});
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1";
  run_gpu_job(std::move(options), [&](World& world, int /*rank*/) {
    const Framework framework;
    start(world);
    reduce(world, framework, "a", 1000, &spec);
    world.stop_timeline();
  });
  const TimelineFile file = this->file();
  ASSERT_EQ(file.on("GPU 0 to host").size(), 1U);
  EXPECT_EQ(file.on("GPU 0 to host").front().name, "TOPK_ALLREDUCE");
  EXPECT_EQ(file.on("GPU 0 to host").front().what, "top-k");
  ASSERT_EQ(file.on("GPU 0 to device").size(), 1U);
  EXPECT_EQ(file.on("GPU 0 to device").front().what, "sum of lists");
  EXPECT_EQ(file.on("GPU 0 to device").front().bytes, 4000);
}

TEST_F(CudaRows, each_gpu_of_a_rank_has_rows) {
  fake::set("devices=2");
  run_gpu_job(on_one_host(2), [&](World& world, int /*rank*/) {
    const Framework first(0);
    const Framework second(1);
    start(world);
    const Tensor tensors[] = {Tensor(first, Numbers(1000)), Tensor(second, Numbers(2000))};
    std::vector<Operation> operations;
    operations.push_back(tensors[0].in(OpType::kAllreduce, "a"));
    operations.back().ready = first.ready_event(timing_for(world));
    operations.push_back(tensors[1].in(OpType::kAllreduce, "b"));
    operations.back().ready = second.ready_event(timing_for(world));
    (void)value(run_together(world, std::move(operations)));
    world.stop_timeline();
  });
  const TimelineFile file = this->file();
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

TEST_F(CudaRows, events_know_their_time_while_there_is_a_timeline_and_another_one_may_begin) {
  run_nccl_job(on_one_host(2), [&](World& world, int rank) {
    const Framework framework(rank);
    EXPECT_FALSE(world.is_recording());
    reduce(world, framework, "before", 1000);
    const Tensor tensor(framework, Numbers(1000));
    (void)value(run_one(world, tensor.in(OpType::kAllreduce, "staged", ReduceOp::kAdasum)));
    EXPECT_EQ(fake::timed_events(), 0);
    wait_for_all(world);
    start(world, "one.json");
    reduce(world, framework, "a", 1000);
    start(world, "two.json");
    reduce(world, framework, "b", 1000);
    world.stop_timeline();
    EXPECT_FALSE(world.is_recording());
    EXPECT_GT(fake::timed_events(), 0);
    reduce(world, framework, "c", 1000);
    start(world, "three.json");
    reduce(world, framework, "d", 1000);
    world.stop_timeline();
  });
  const std::pair<std::string, std::string> files[] = {
      {"one.json", "allreduce.a"}, {"two.json", "allreduce.b"}, {"three.json", "allreduce.d"}};
  for (const auto& [name, tensor] : files) {
    const TimelineFile file = this->file(0, name);
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

TEST_F(CudaRows, a_driver_that_does_not_say_the_time_costs_the_rows_alone) {
  set_log_sink(&keep_line);
  run_nccl_job(
      on_one_host(2),
      [&](World& world, int rank) {
        const Framework framework(rank);
        reduce_two(world, framework);
      },
      "devices=4,fail=cuEventElapsedTime:1:0");
  set_log_sink(nullptr);
  EXPECT_EQ(file().of_gpus(), 0);
  EXPECT_EQ(file().on("lane 0").size(), 2U);
  const MutexLock lock(log_mutex);
  EXPECT_EQ(
      std::ranges::count_if(
          std::exchange(log_lines, {}),
          [](const std::string& line) {
            return line.find("the timeline lacks 'GPU 0 NCCL' from now on: cuEventElapsedTime") !=
                   std::string::npos;
          }),
      1);
}

TEST_F(CudaRows, what_nccl_does_not_end_ends_with_the_error) {
  run_nccl_job(on_one_host(2), [&](World& world, int rank) {
    const Framework framework(rank);
    start(world);
    reduce(world, framework, "a", 1000);
    wait_for_all(world);
    if (rank == 0) {
      fake::set_nccl("broken=1");
    }
    wait_for_all(world);
    const Tensor tensor(framework, Numbers(1000));
    EXPECT_FALSE(run_one(world, tensor.in(OpType::kAllreduce, "b")).ok());
    world.stop_timeline();
  });
  int failed = 0;
  for (const int rank : {0, 1}) {
    const TimelineFile file = this->file(rank);
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

TEST_F(GpuClockTest, a_call_that_fails_is_named) {
  const Framework framework;
  fake::set("fail=cuEventElapsedTime:1:0");
  GpuClock clock(framework.driver(), Clock::system());
  const auto anchor = value(clock.anchor());
  const auto event = event_on(framework);
  const std::string told = clock.time_of(*anchor, event.get()).status().message();
  EXPECT_TRUE(told.starts_with("cuEventElapsedTime")) << told;
}

}  // namespace
}  // namespace lightcc::cuda::cuda_rows_test
