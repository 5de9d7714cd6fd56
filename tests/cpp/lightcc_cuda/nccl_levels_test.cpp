// All-reduces of the fake GPU's tensors on two levels, with the fake NCCL within hosts and between
// them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/half.hpp"
#include "lightcc/base/log.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/compressed_training.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"
#include "lightcc_cuda/nccl_levels_jobs.hpp"
#include "lightcc_cuda/nccl_topk_jobs.hpp"
#include "lightcc_cuda/topk_jobs.hpp"

namespace lightcc::cuda::nccl_levels_test {
namespace {

using lightcc::testing::bare;
using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
using lightcc::testing::on_hosts;
using lightcc::testing::on_one_host;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
namespace topk_jobs = testing::topk_jobs;
using testing::errors_of_nccl_job;
using testing::Framework;
using testing::run_nccl_job;
using testing::Tensor;
using testing::wait_for_all;
using testing::levels_jobs::bits_of;
using testing::levels_jobs::bucket_of;
using testing::levels_jobs::How;
using testing::levels_jobs::kChunkBytes;
using testing::levels_jobs::local_gpu;
using testing::levels_jobs::reduce;

/// Of NCCL, for a chunk: it is scattered, all-reduced between hosts, and gathered.
constexpr int kStages = 3;

JobOptions by_nccl(JobOptions options, std::size_t chunk_bytes = kChunkBytes) {
  options = testing::levels_jobs::on_levels(std::move(options));
  options.environment["LIGHT_2D_CHUNK"] = std::to_string(chunk_bytes);
  options.environment["LIGHT_2D_INTER"] = "nccl";
  return options;
}

JobOptions two_by_two(std::size_t chunk_bytes = kChunkBytes) {
  return by_nccl(on_hosts({0, 0, 1, 1}), chunk_bytes);
}

/// The stages overlap, where NCCL is as new as kOrders says.
JobOptions overlapped(JobOptions options) {
  options.environment["NCCL_LAUNCH_ORDER_IMPLICIT"] = "1";
  return options;
}
constexpr const char* kOrders = "version=22602";

class NcclLevels : public ::testing::Test {
 protected:
  void SetUp() override { fake::set_nccl(""); }
};

// The same chunks, shards and order of ranks: the fake NCCL adds in their order.
TEST_F(NcclLevels, gives_the_bits_of_the_hosts_two_levels_for_all_sizes) {
  const std::vector<std::vector<std::size_t>> shapes = {
      {0}, {1}, {3}, {1001}, {4096}, {10007}, {1, 0, 5, 3003, 2, 0, 17, 1}, {700, 600, 500}};
  for (const JobOptions& options : {two_by_two(), overlapped(two_by_two())}) {
    fake::set_nccl(kOrders);
    run_nccl_job(options, [&](World& world, int rank) {
      const Framework framework(local_gpu(world));
      for (const auto& counts : shapes) {
        for (const bool in_place : {true, false}) {
          const How how{.in_place = in_place};
          const auto expected = reduce(world, bucket_of(rank, counts), how, nullptr);
          EXPECT_EQ(reduce(world, bucket_of(rank, counts), how, &framework), expected)
              << counts.front();
        }
      }
      EXPECT_EQ(world.stats().device_buckets.staged, 0U);
    });
  }
}

TEST_F(NcclLevels, takes_blocks_of_any_shape_and_chunks_of_any_size) {
  const std::vector<JobOptions> jobs = {
      by_nccl(on_hosts({0, 0, 0, 1, 1, 1})),
      by_nccl(on_hosts({0, 0, 1, 1, 2, 2})),
      by_nccl(on_hosts({0, 1, 0, 1})),
      overlapped(by_nccl(on_hosts({0, 0, 0, 1, 1, 1}), 256)),
      by_nccl(lightcc::testing::in_blocks(2, on_one_host(4)), 1000),
      two_by_two(0),  // By the size of the bucket: one chunk.
  };
  for (const JobOptions& options : jobs) {
    fake::set_nccl(kOrders);
    run_nccl_job(options, [&](World& world, int rank) {
      const Framework framework(local_gpu(world));
      const auto expected = reduce(world, bucket_of(rank, {1000, 2047}), {}, nullptr);
      EXPECT_EQ(reduce(world, bucket_of(rank, {1000, 2047}), {}, &framework), expected);
      EXPECT_EQ(world.stats().device_buckets.on_levels, 1U);
    });
  }
}

/// Small whole numbers of any type, in the memory of so many float32.
Numbers whole_numbers(int rank, DataType dtype, std::size_t count) {
  const std::size_t size = element_size(dtype);
  std::vector<std::byte> bytes(count * sizeof(float));
  for (std::size_t i = 0; i < bytes.size() / size; ++i) {
    const auto number = static_cast<int>((i * 5 + static_cast<std::size_t>(rank)) % 3) + 1;
    const auto put = [&](auto value) { std::memcpy(&bytes[i * size], &value, sizeof(value)); };
    switch (dtype) {
      case DataType::kFloat16:
        put(float_to_half(static_cast<float>(number)));
        break;
      case DataType::kBfloat16:
        put(float_to_bfloat16(static_cast<float>(number)));
        break;
      case DataType::kFloat32:
        put(static_cast<float>(number));
        break;
      case DataType::kFloat64:
        put(static_cast<double>(number));
        break;
      case DataType::kInt64:
        put(static_cast<std::int64_t>(number));
        break;
      case DataType::kInt32:
        put(static_cast<std::int32_t>(number));
        break;
      default:
        put(static_cast<std::uint8_t>(number));
        break;
    }
  }
  Numbers numbers(count);
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

TEST_F(NcclLevels, combines_every_type_and_operator_exactly) {
  run_nccl_job(two_by_two(), [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    for (const DataType dtype : {DataType::kUint8,
                                 DataType::kInt8,
                                 DataType::kInt32,
                                 DataType::kInt64,
                                 DataType::kFloat16,
                                 DataType::kBfloat16,
                                 DataType::kFloat32,
                                 DataType::kFloat64}) {
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        const How how{.op = op, .dtype = dtype};
        const Numbers numbers = whole_numbers(rank, dtype, 3002);
        EXPECT_EQ(bits_of(reduce(world, {numbers}, how, &framework)),
                  bits_of(reduce(world, {numbers}, how, nullptr)))
            << data_type_name(dtype) << " " << reduce_op_name(op);
      }
    }
    EXPECT_EQ(world.stats().device_buckets.on_levels, 32U);
  });
}

// Powers of two: NCCL applies a factor before it adds, and the host afterwards.
TEST_F(NcclLevels, applies_averages_and_factors_once) {
  run_nccl_job(two_by_two(), [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        const How how{.op = op, .prescale = 0.5, .postscale = 4.0, .dtype = dtype};
        const Numbers numbers = whole_numbers(rank, dtype, 2001);
        EXPECT_EQ(bits_of(reduce(world, {numbers}, how, &framework)),
                  bits_of(reduce(world, {numbers}, how, nullptr)))
            << data_type_name(dtype) << " " << reduce_op_name(op);
      }
    }
  });
}

TEST_F(NcclLevels, cuts_alike_where_tensors_are_neighbours_on_one_rank_alone) {
  run_nccl_job(two_by_two(), [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    const How how{.is_apart = rank != 1};
    const auto expected = reduce(world, bucket_of(rank, {300, 200, 100}), how, nullptr);
    EXPECT_EQ(reduce(world, bucket_of(rank, {300, 200, 100}), how, &framework), expected);
  });
}

Numbers sum_of(const std::vector<int>& members, std::size_t count) {
  Numbers sum(count, 0.0F);
  for (const int member : members) {
    std::ranges::transform(sum, numbers_of(member, count), sum.begin(), std::plus<>());
  }
  return sum;
}

Operation summed(Operation operation) {
  operation.request.signature.reduce_op = ReduceOp::kSum;
  operation.request.signature.fusion = {FusionRule::kNone, 0};
  return operation;
}

// Its shard of a sum still passes through it, chunk by chunk.
TEST_F(NcclLevels, ranks_that_have_joined_contribute_zeros) {
  for (const JobOptions& options :
       {two_by_two(1024), overlapped(by_nccl(on_hosts({0, 0, 1, 1, 2, 2}), 1024))}) {
    fake::set_nccl(kOrders);
    run_nccl_job(options, [&](World& world, int rank) {
      const Framework framework(local_gpu(world));
      Numbers data = numbers_of(rank, 3000);
      if (rank != 1 && rank != 2) {
        std::vector<int> others;
        for (int other = 0; other < options.size; ++other) {
          if (other != 1 && other != 2) {
            others.push_back(other);
          }
        }
        for (int step = 0; step < 3; ++step) {
          const Tensor tensor(framework, data);
          const auto reduced =
              run_one(world, summed(tensor.put(operation_on(OpType::kAllreduce, "t", data))));
          ASSERT_TRUE(reduced.ok()) << reduced.status().message();
          EXPECT_EQ(tensor.read(), sum_of(others, data.size()));
        }
      }
      EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
    });
  }
}

TEST_F(NcclLevels, everything_else_runs_flat_beside_it) {
  run_nccl_job(two_by_two(), [](World& world, int rank) {
    const Framework framework(local_gpu(world));
    const Tensor tensor(framework, numbers_of(rank));
    lightcc::testing::for_every_operation(rank, [&](const std::string& name, Operation operation) {
      operation.output.reset();
      if (operation.request.signature.op == OpType::kAlltoall) {
        operation.request.splits = {250, 250, 250, 250};
      }
      auto on_host = run_one(world, operation);
      auto on_gpu = run_one(world, tensor.put(operation));
      ASSERT_TRUE(on_host.ok()) << on_host.status().message();
      ASSERT_TRUE(on_gpu.ok()) << name << ": " << on_gpu.status().message();
      EXPECT_EQ(testing::numbers_in(*on_gpu->front().output, &tensor),
                testing::numbers_in(*on_host->front().output, nullptr))
          << name;
    });
    EXPECT_EQ(world.stats().device_buckets.on_levels, 2U);  // Sum and average.
  });
}

TEST_F(NcclLevels, runs_flat_where_hosts_differ_or_it_is_too_large_or_nobody_asks) {
  JobOptions larger = two_by_two();
  larger.environment["LIGHT_HIERARCHICAL_THRESHOLD"] = "4000";
  JobOptions unasked = two_by_two();
  unasked.environment.erase("LIGHT_2D_ALLREDUCE");
  for (const JobOptions& options : {by_nccl(on_hosts({0, 0, 1})), larger, unasked}) {
    run_nccl_job(options, [&](World& world, int rank) {
      const Framework framework(local_gpu(world));
      Numbers data = numbers_of(rank, 5000);
      const Tensor tensor(framework, data);
      ASSERT_TRUE(
          run_one(world, summed(tensor.put(operation_on(OpType::kAllreduce, "t", data)))).ok());
      wait_for_all(world);
      EXPECT_EQ(fake::operations_of_nccl(), options.size);
      EXPECT_EQ(world.stats().device_buckets.by_own_plane, 1U);
      EXPECT_EQ(world.stats().device_buckets.on_levels, 0U);
      wait_for_all(world);
      EXPECT_EQ(tensor.read(),
                sum_of(options.size == 3 ? std::vector{0, 1, 2} : std::vector{0, 1, 2, 3}, 5000));
    });
  }
}

Mutex warnings_mutex;
std::vector<std::string> warnings LIGHTCC_GUARDED_BY(warnings_mutex);

TEST_F(NcclLevels, a_warning_says_where_two_levels_are_not_asked_for) {
  set_log_sink([](LogLevel level, const std::string& line) {
    const MutexLock lock(warnings_mutex);
    if (level == LogLevel::kWarning) {
      warnings.push_back(line);
    }
  });
  JobOptions unasked = two_by_two();
  unasked.environment.erase("LIGHT_2D_ALLREDUCE");
  for (const JobOptions& options : {two_by_two(), unasked}) {
    run_nccl_job(options, [](World& /*world*/, int /*rank*/) {});
  }
  set_log_sink(nullptr);
  const MutexLock lock(warnings_mutex);
  ASSERT_EQ(warnings.size(), 1U);  // Of rank 0.
  EXPECT_NE(warnings.front().find("LIGHT_2D_INTER=nccl: all-reduces by NCCL are flat without "
                                  "LIGHT_2D_ALLREDUCE=1"),
            std::string::npos)
      << warnings.front();
}

// With the engine's transport between hosts, chunks would come to the host, and wait there.
TEST_F(NcclLevels, nothing_comes_to_the_host) {
  constexpr std::size_t kCount = 5000;  // Five chunks.
  run_nccl_job(
      two_by_two(),
      [&](World& world, int rank) {
        const Framework framework(local_gpu(world));
        Numbers data = numbers_of(rank, kCount);
        const Tensor tensor(framework, data);
        wait_for_all(world);
        if (rank == 0) {
          fake::set("devices=4,hold=0:0");
        }
        wait_for_all(world);
        const auto reduced =
            run_one(world, summed(tensor.put(operation_on(OpType::kAllreduce, "t", data))));
        ASSERT_TRUE(reduced.ok()) << reduced.status().message();
        wait_for_all(world);
        EXPECT_EQ(fake::copies_of(0).to_host + fake::copies_of(1).to_host, 0);
        EXPECT_EQ(fake::operations_of_nccl(), 5 * kStages * world.topology().size);
        wait_for_all(world);
        if (rank == 0) {
          fake::set("devices=4");
        }
        wait_for_all(world);
        EXPECT_EQ(tensor.read(), sum_of({0, 1, 2, 3}, kCount));
        EXPECT_EQ(world.stats().device_buckets.by_own_plane, 1U);
        EXPECT_EQ(world.stats().device_buckets.on_levels, 1U);
        ASSERT_EQ(world.stats().allreduce_costs.size(), 1U);
        EXPECT_EQ(world.stats().allreduce_costs.front().carrier, Carrier::kDevice);
        EXPECT_TRUE(world.stats().allreduce_costs.front().two_level);
      },
      "devices=4");
}

// ---- Streams.

/// Reduces tensors of `chunks` chunks each, one in each lane, while all that is between hosts is
/// held. Rank 0 calls `look` then.
void hold_what_is_between_hosts(JobOptions options,
                                std::size_t lanes,
                                std::size_t chunks,
                                const std::function<void()>& look) {
  options.environment["LIGHT_NUM_STREAMS"] = std::to_string(lanes);
  fake::set_nccl(kOrders);
  run_nccl_job(
      std::move(options),
      [&](World& world, int rank) {
        const Framework framework(local_gpu(world));
        const std::size_t count = chunks * kChunkBytes / sizeof(float);
        std::vector<Numbers> data(lanes, numbers_of(rank, count));
        std::vector<Tensor> tensors;
        tensors.reserve(lanes);
        wait_for_all(world);
        if (rank == 0) {
          fake::set_nccl(std::string(kOrders) + ",holds=ncclAllReduce");
        }
        wait_for_all(world);
        std::vector<Handle> handles;
        for (std::size_t i = 0; i < lanes; ++i) {
          tensors.emplace_back(framework, data[i]);
          const auto handle =
              world.start(lightcc::testing::only(summed(tensors.back().put(
                              operation_on(OpType::kAllreduce, "t" + std::to_string(i), data[i])))),
                          {});
          ASSERT_TRUE(handle.ok()) << handle.status().message();
          handles.push_back(*handle);
        }
        if (rank == 0) {
          look();
          fake::set_nccl(kOrders);
        }
        for (const Handle& handle : handles) {
          const auto ended = world.wait(handle, {});
          ASSERT_TRUE(ended.ok()) << ended.status().message();
        }
        for (const Tensor& tensor : tensors) {
          EXPECT_EQ(tensor.read(), sum_of({0, 1, 2, 3}, count));
        }
      },
      "devices=4");
}

bool all_are_called(int buckets, int chunks) {
  return topk_jobs::comes_true(
      [=] { return fake::operations_of_nccl() == buckets * chunks * kStages * 4; });
}

TEST_F(NcclLevels, a_chunk_is_scattered_while_the_one_before_it_is_between_hosts) {
  hold_what_is_between_hosts(overlapped(two_by_two()), 1, 5, [] {
    EXPECT_TRUE(all_are_called(1, 5)) << fake::operations_of_nccl();
    EXPECT_TRUE(topk_jobs::comes_true([] { return fake::ended_of_nccl("ncclReduce") == 2 * 4; }));
    EXPECT_EQ(fake::ended_of_nccl("ncclBroadcast"), 0);
    EXPECT_EQ(fake::streams_of_nccl(), 2 * 4);
  });
}

// The chunk behind is on the same stream, so nothing of it can have ended.
TEST_F(NcclLevels, chunks_take_turns_on_one_stream_where_nccl_keeps_no_order) {
  hold_what_is_between_hosts(two_by_two(), 1, 5, [] {
    EXPECT_TRUE(all_are_called(1, 5)) << fake::operations_of_nccl();
    EXPECT_TRUE(topk_jobs::comes_true([] { return fake::ended_of_nccl("ncclReduce") == 4; }));
    EXPECT_EQ(fake::streams_of_nccl(), 4);
  });
}

// Where the host has a part in it, a bucket on two levels ends before the next one begins.
TEST_F(NcclLevels, a_bucket_begins_before_the_one_before_it_has_ended) {
  for (const JobOptions& options : {two_by_two(), overlapped(two_by_two())}) {
    hold_what_is_between_hosts(options, 2, 3, [] {
      EXPECT_TRUE(all_are_called(2, 3)) << fake::operations_of_nccl();
      EXPECT_EQ(fake::ended_of_nccl("ncclBroadcast"), 0);
    });
  }
}

TEST_F(NcclLevels, ranks_call_nccl_in_one_order_over_lanes_and_sets) {
  const JobOptions options = by_nccl(on_hosts({0, 0, 0, 1, 1, 1}));
  // GPUs have room for one operation at a time: a rank that began with another one would wait.
  fake::set_nccl("room=1");
  testing::levels_jobs::reduce_on_lanes_and_sets(options);
  fake::set_nccl("room=1,ordered=1,version=22602");
  testing::levels_jobs::reduce_on_lanes_and_sets(overlapped(options));
}

// Lists use the communicator between hosts, too, on the stream of the block.
TEST_F(NcclLevels, takes_turns_with_lists_of_topk_on_all_lanes_and_sets) {
  const auto reduced = [](const char* inter) {
    JobOptions options = overlapped(topk_jobs::options_on_levels());
    options.environment["LIGHT_NCCL_TOPK"] = "1";
    options.environment["LIGHT_2D_INTER"] = inter;
    options.environment["LIGHT_2D_CHUNK"] = "1024";
    fake::set_nccl(kOrders);
    return topk_jobs::reduced_on_lanes_and_sets(options, [](const World&) {});
  };
  EXPECT_EQ(reduced("nccl"), reduced("host"));
}

// What is compressed without that has its own way between hosts.
TEST_F(NcclLevels, lists_of_topk_go_by_way_of_the_host_unless_they_are_asked_for_too) {
  topk_jobs::ByRank expected = topk_jobs::trained_on_hosts(topk_jobs::options_on_levels(), {});
  JobOptions options = topk_jobs::options_on_levels();
  options.environment["LIGHT_2D_INTER"] = "nccl";
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    EXPECT_EQ(topk_jobs::train(world, rank, &framework, {}), topk_jobs::of(expected, rank));
    EXPECT_GT(world.stats().topk.on_device, 0U);
  });
}

TEST_F(NcclLevels, shards_of_several_tensors_are_packed_where_there_is_a_buffer) {
  JobOptions options = overlapped(two_by_two());
  options.environment["LIGHT_NCCL_BUFFER"] = "64K";
  const int before = fake::registrations_of_nccl().made;
  fake::set_nccl(kOrders);
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    const std::vector<std::size_t> counts(40, 100);
    const auto expected = reduce(world, bucket_of(rank, counts), {}, nullptr);
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(reduce(world, bucket_of(rank, counts), {}, &framework), expected);
    }
  });
  EXPECT_EQ(fake::registrations_of_nccl().made, before + 4);
}

// ---- Failures.

/// All ranks are told these words when they have reduced until an error comes.
void expect_error(const JobOptions& options,
                  const std::string& words,
                  const std::string& fault,
                  const std::function<void()>& begin) {
  fake::set_nccl(kOrders);
  // An average has an operator of its own, for a factor.
  const std::vector<Status> told = errors_of_nccl_job(options, 5000, begin, ReduceOp::kAverage);
  EXPECT_EQ(told.size(), 4U) << fault;
  for (const Status& status : told) {
    EXPECT_NE(status.message().find(words), std::string::npos) << fault << ": " << status.message();
  }
}

void expect_error_of_nccl(const JobOptions& options,
                          const std::string& words,
                          const std::string& fault) {
  expect_error(options, words, fault, [&] { fake::set_nccl(kOrders + ("," + fault)); });
}

// Groups within hosts and between them, and what only one of the levels calls.
TEST_F(NcclLevels, a_failure_of_nccl_ends_the_world_on_all_ranks) {
  for (const char* const fault : {"fail=ncclGroupEnd:3:1",
                                  "fail=ncclGroupEnd:3:6",
                                  "fail=ncclGroupEnd:3:23",
                                  "fail=ncclGroupEnd:3:60",
                                  "fail=ncclAllReduce:3:1",
                                  "fail=ncclAllReduce:3:9",
                                  "fail=ncclRedOpCreatePreMulSum:3:3"}) {
    for (const JobOptions& options : {two_by_two(), overlapped(two_by_two())}) {
      expect_error_of_nccl(options, "error of the fake NCCL (NCCL error 3)", fault);
    }
  }
}

TEST_F(NcclLevels, a_failure_of_the_driver_ends_the_world_on_all_ranks) {
  for (const std::string call : {"cuStreamWaitEvent", "cuEventRecord", "cuEventCreate"}) {
    expect_error(overlapped(two_by_two()), call, call, [&] {
      fake::set("devices=4,fail=" + call + ":2:5");
    });
  }
}

TEST_F(NcclLevels, an_asynchronous_error_is_told_on_whatever_level_it_is) {
  for (const char* const fault : {"broken=1", "broken=6", "broken=12"}) {
    expect_error_of_nccl(overlapped(two_by_two()), "remote process exited", fault);
  }
}

TEST_F(NcclLevels, an_operation_without_end_or_beginning_is_a_timeout) {
  JobOptions options = overlapped(two_by_two());
  options.environment["LIGHT_NCCL_TIMEOUT"] = "0.5";
  for (const char* const fault : {"hangs=2", "hangs=7", "connects=6"}) {
    expect_error_of_nccl(options, "LIGHT_NCCL_TIMEOUT", fault);
  }
}

// A rank that has joined has no result to work in.
TEST_F(NcclLevels, memory_that_lacks_ends_the_world_on_all_ranks) {
  std::vector<Status> told(4);
  run_nccl_job(two_by_two(), [&](World& world, int rank) {
    const Framework framework(local_gpu(world));
    Numbers data = numbers_of(rank, 3000);
    const Tensor tensor(framework, data);
    wait_for_all(world);
    if (rank == 1) {
      fake::set("devices=4,fail=cuMemAlloc_v2:2:1");
      told[1] = run_one(world, bare(OpType::kJoin)).status();
    } else {
      told.at(static_cast<std::size_t>(rank)) =
          run_one(world, summed(tensor.put(operation_on(OpType::kAllreduce, "t", data)))).status();
    }
  });
  for (const Status& status : told) {
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace lightcc::cuda::nccl_levels_test
