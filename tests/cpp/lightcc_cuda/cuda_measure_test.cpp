// Measurements of kernels on the fake driver: what they are of, that results are looked at, and
// what is refused. Times are plausible, and nothing more.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/measure/measure.hpp"
#include "lightcc_cuda/measure/stopwatch.hpp"

namespace lightcc::cuda::cuda_measure_test {
namespace {

using Sizes = std::vector<std::size_t>;

constexpr MeasureEffort kEffort{.rounds = 2, .launches = 2};

Result<std::vector<Measured>> measure(const std::string& what, const Sizes& sizes) {
  auto all = measure_gpu(0, what, sizes, kEffort);
  fake::set("");
  EXPECT_EQ(fake::live(), 0);
  return all;
}

/// What is measured of something, each with right results and times.
std::vector<Measured> measured(const std::string& what, const Sizes& sizes) {
  fake::set("");
  const auto all = measure(what, sizes);
  EXPECT_TRUE(all.ok()) << what << ": " << all.status().message();
  for (const Measured& one : all.ok() ? *all : std::vector<Measured>()) {
    EXPECT_EQ(one.errors, 0U) << one.name;
    EXPECT_FALSE(one.seconds.empty()) << one.name;
    EXPECT_TRUE(std::ranges::all_of(one.seconds, [](double time) { return time >= 0.0; }))
        << one.name;
  }
  return all.ok() ? *all : std::vector<Measured>();
}

std::vector<std::string> names_of(const std::vector<Measured>& all) {
  std::vector<std::string> names;
  for (const Measured& one : all) {
    names.push_back(one.name);
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(CudaMeasure, loads_all_kernels_from_ptx_and_as_users_have_them) {
  const auto all = measured("loading", {});
  EXPECT_EQ(names_of(all), (Names{"compile kernels", "compile again", "load kernels"}));
  EXPECT_EQ(all.at(0).elements, kernel_names().size());
}

TEST(CudaMeasure, launches_are_of_few_and_of_many_arguments) {
  EXPECT_EQ(names_of(measured("launches", {})), (Names{"launch", "call to launch"}));
}

TEST(CudaMeasure, each_job_of_a_launcher_is_a_figure) {
  const auto all = measured("launcher", {});
  EXPECT_EQ(names_of(all), (Names{"job to kernel end", "kernel end to host"}));
  EXPECT_EQ(all.at(0).seconds.size(), kEffort.rounds * kEffort.launches);
}

TEST(CudaMeasure, copies_count_what_they_read_and_write) {
  const auto all = measured("copies", {30001});
  EXPECT_EQ(names_of(all), (Names{"copy by kernel", "copy by driver"}));
  for (const Measured& one : all) {
    EXPECT_EQ(one.elements, 30001U);
    EXPECT_EQ(one.bytes, 8U * 30001U);
    EXPECT_EQ(one.seconds.size(), kEffort.rounds);
  }
}

TEST(CudaMeasure, a_bucket_may_take_several_launches) {
  Sizes sizes(300, 65);
  sizes.insert(sizes.begin() + 7, 20000);
  const auto all = measured("buckets", sizes);
  EXPECT_EQ(names_of(all), (Names{"pack", "unpack"}));
  EXPECT_EQ(all.at(1).elements, 300U * 65U + 20000U);
  EXPECT_EQ(all.at(1).bytes, 8U * all.at(1).elements);
}

TEST(CudaMeasure, steps_of_top_k_are_exact_and_in_steady_state) {
  for (const std::size_t elements : {std::size_t{70001}, std::size_t{500}, std::size_t{1}}) {
    const auto all = measured("topk", {elements});
    EXPECT_EQ(names_of(all), (Names{"exact step", "select pass", "select step"}));
    EXPECT_EQ(all.at(0).bytes, 36U * elements);
    EXPECT_EQ(all.at(1).bytes, 12U * elements);
    EXPECT_EQ(all.at(2).bytes, 12U * elements);
  }
}

TEST(CudaMeasure, a_merge_counts_lists_and_sum) {
  const auto all = measured("merge", {70001});
  EXPECT_EQ(names_of(all), Names{"merge"});
  // 8 lists of 701 entries, each with a header and two blocks.
  EXPECT_EQ(all.at(0).bytes, 8U * (16U + 2U * 4U + 701U * 6U) + 4U * 70001U);
}

TEST(CudaMeasure, sees_kernels_that_do_nothing) {
  const std::vector<std::pair<std::string, Sizes>> all{{"launches", {}},
                                                       {"launcher", {}},
                                                       {"copies", {1000}},
                                                       {"buckets", {1000, 10}},
                                                       {"topk", {1000}},
                                                       {"merge", {1000}}};
  for (const auto& [what, sizes] : all) {
    fake::set("wrong=1");
    const auto result = measure(what, sizes);
    EXPECT_TRUE(!result.ok() || std::ranges::any_of(*result, [](const Measured& one) {
      return one.errors > 0;
    })) << what;
  }
}

TEST(CudaMeasure, a_failed_call_is_told_and_leaves_nothing) {
  const std::vector<std::string> calls{"cuEventElapsedTime",
                                       "cuEventCreate",
                                       "cuEventRecord",
                                       "cuEventQuery",
                                       "cuMemAlloc_v2",
                                       "cuMemHostAlloc",
                                       "cuMemsetD8Async",
                                       "cuMemcpyHtoDAsync_v2",
                                       "cuMemcpyDtoHAsync_v2",
                                       "cuLaunchKernel"};
  for (const std::string& call : calls) {
    fake::set("fail=" + call + ":2:1");
    const auto result = measure("topk", {1000});
    EXPECT_EQ(result.status().code(), ErrorCode::kSystem) << call;
    EXPECT_NE(result.status().message().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos)
        << result.status().message();
  }
}

TEST(CudaMeasure, what_was_queued_before_a_failure_ends_before_its_memory_goes) {
  const std::vector<std::pair<std::string, Sizes>> all{
      {"launches", {}}, {"copies", {1000}}, {"buckets", {1000, 10}}, {"merge", {1000}}};
  for (const auto& [what, sizes] : all) {
    for (const std::string call : {"cuLaunchKernel:2:2",
                                   "cuMemcpyDtoDAsync_v2:2:2",
                                   "cuMemcpyDtoHAsync_v2:2:1",
                                   "cuMemcpyHtoDAsync_v2:2:1",
                                   "cuMemsetD8Async:2:1"}) {
      fake::set("fail=" + call);
      EXPECT_EQ(measure(what, sizes).status().code(), ErrorCode::kSystem) << what << ' ' << call;
    }
  }
}

TEST(CudaMeasure, a_job_that_fails_is_told) {
  fake::set("fail=cuLaunchKernel:719:3");
  const auto result = measure("launcher", {});
  EXPECT_EQ(result.status().message(),
            "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED (of the fake driver)");
}

std::string refusal(int index,
                    const std::string& what,
                    const Sizes& sizes,
                    const MeasureEffort& effort = kEffort) {
  const auto result = measure_gpu(index, what, sizes, effort);
  EXPECT_EQ(result.status().code(), ErrorCode::kInvalidArgument);
  return result.status().message();
}

TEST(CudaMeasure, refuses_what_is_not_there) {
  fake::set("");
  EXPECT_EQ(refusal(1, "copies", {1}), "there is no GPU 1: this process has 1, numbered from 0");
  EXPECT_EQ(refusal(-1, "copies", {1}), "there is no GPU -1: this process has 1, numbered from 0");
  EXPECT_EQ(refusal(0, "speed", {}),
            "'speed' cannot be measured on a GPU; there are loading, launches, launcher, copies, "
            "buckets, topk, merge");
  EXPECT_EQ(refusal(0, "loading", {1}), "'loading' is measured with no sizes");
  EXPECT_EQ(refusal(0, "topk", {}),
            "'topk' is measured with one size, from 1 to 2147483647 elements");
  EXPECT_EQ(refusal(0, "copies", {1, 2}),
            "'copies' is measured with one size, from 1 to 2147483647 elements");
  EXPECT_EQ(refusal(0, "merge", {std::size_t{1} << 31}),
            "'merge' is measured with one size, from 1 to 2147483647 elements");
  EXPECT_EQ(refusal(0, "buckets", {5, 0}),
            "'buckets' is measured with sizes, from 1 to 2147483647 elements");
  EXPECT_EQ(refusal(0, "loading", {}, {.rounds = 0, .launches = 1}),
            "measurements take 1 round or more, of 1 to 32 launches, and not 0 of 1");
  EXPECT_EQ(refusal(0, "loading", {}, {.rounds = 1, .launches = 33}),
            "measurements take 1 round or more, of 1 to 32 launches, and not 1 of 33");
}

class CudaStopwatch : public ::testing::Test {
 protected:
  static constexpr std::size_t kCopied = 4096;

  testing::Framework gpu_;
};

TEST_F(CudaStopwatch, launches_again_until_the_gpu_waits_for_nothing) {
  const Stream stream = testing::value(Stream::create(gpu_.driver()));
  Stopwatch stopwatch = testing::value(Stopwatch::make(gpu_.driver(), stream, kCopied));
  int prepared = 0;
  int enqueued = 0;
  const auto slow = stopwatch.time(
      [&] {
        ++prepared;
        return Status();
      },
      [&] {
        ++enqueued;
        return stream.wait();  // The host has been too slow by now.
      });
  ASSERT_TRUE(slow.ok()) << slow.status().message();
  EXPECT_TRUE(slow->has_gaps);
  EXPECT_EQ(enqueued, 9);  // Behind 1, 2, .. 256 copies.
  EXPECT_EQ(prepared, enqueued);
  EXPECT_GE(slow->seconds, 0.0);
}

TEST_F(CudaStopwatch, a_stream_that_has_all_at_first_has_no_gaps) {
  const Stream stream = testing::value(Stream::create(gpu_.driver()));
  Stopwatch stopwatch = testing::value(Stopwatch::make(gpu_.driver(), stream));
  const auto reading = stopwatch.time([] { return Status(); }, [] { return Status(); });
  ASSERT_TRUE(reading.ok()) << reading.status().message();
  EXPECT_FALSE(reading->has_gaps);
}

TEST_F(CudaStopwatch, a_failure_of_what_is_timed_is_told) {
  const Stream stream = testing::value(Stream::create(gpu_.driver()));
  Stopwatch stopwatch = testing::value(Stopwatch::make(gpu_.driver(), stream, kCopied));
  const Status failure(ErrorCode::kInternal, "it cannot");
  EXPECT_EQ(stopwatch.time([] { return Status(); }, [&] { return failure; }).status().message(),
            "it cannot");
  EXPECT_EQ(stopwatch.time([&] { return failure; }, [] { return Status(); }).status().message(),
            "it cannot");
}

TEST_F(CudaStopwatch, events_without_timing_have_no_time) {
  const Event with = testing::value(make_event(gpu_.driver(), Timing::kKnown));
  EventHandle* without = nullptr;
  ASSERT_EQ(gpu_.driver().call().create_event(&without, kEventWithoutTiming), kSuccess);
  ASSERT_EQ(gpu_.driver().call().record_event(with.get(), gpu_.stream()), kSuccess);
  ASSERT_EQ(gpu_.driver().call().record_event(without, gpu_.stream()), kSuccess);
  gpu_.wait();
  EXPECT_TRUE(seconds_between(gpu_.driver(), with, with).ok());
  float milliseconds = 0.0F;
  EXPECT_NE(gpu_.driver().call().elapsed_ms(&milliseconds, with.get(), without), kSuccess);
  ASSERT_EQ(gpu_.driver().call().destroy_event(without), kSuccess);
}

}  // namespace
}  // namespace lightcc::cuda::cuda_measure_test
