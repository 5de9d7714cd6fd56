#include "lightcc/engine/world.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "engine/rank_threads.hpp"

namespace lightcc::world_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

class Worlds : public ::testing::TestWithParam<JobOptions> {};

TEST_P(Worlds, allreduce_sums_over_all_ranks) {
  const int size = GetParam().size;
  run_job(GetParam(), [&](World& world, int rank) {
    for (const std::size_t count :
         std::initializer_list<std::size_t>{0, 1, 7, 1000, 100'000, 1'000'001}) {
      for (int round = 0; round < 3; ++round) {
        std::vector<float> data(count);
        for (std::size_t i = 0; i < count; ++i) {
          data[i] = static_cast<float>(static_cast<int>(i % 17) + rank);
        }
        const auto done = run_one(world, allreduce_of("t" + std::to_string(count), data));
        ASSERT_TRUE(done.ok()) << done.status().message();
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(data[i],
                    static_cast<float>(static_cast<int>(i % 17) * size + size * (size - 1) / 2));
        }
      }
    }
  });
}

TEST_P(Worlds, a_repeated_allreduce_is_one_like_the_first) {
  const int size = GetParam().size;
  run_job(GetParam(), [&](World& world, int rank) {
    for (const std::size_t count : std::initializer_list<std::size_t>{5, 100'000}) {
      std::vector<float> first(count, 1.0F);
      const auto handle = world.start(only(allreduce_of("r" + std::to_string(count), first)),
                                      {.waits = true, .repeats = true});
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(world.wait(*handle, {}).ok());
      for (int round = 0; round < 20; ++round) {
        std::vector<float> input(count, static_cast<float>(rank + round));
        std::vector<float> output(count);
        ASSERT_TRUE(world.repeat(*handle, input.data(), output.data(), {}).ok());
        const auto sum = static_cast<float>(size * (size - 1) / 2 + size * round);
        ASSERT_EQ(output, std::vector<float>(count, sum));
        ASSERT_EQ(input.back(), static_cast<float>(rank + round));
      }
    }
    EXPECT_EQ(world.stats().operations, 42);
    EXPECT_EQ(world.stats().in_flight, 0);
  });
}

TEST_P(Worlds, many_operations_submitted_in_different_orders_all_finish) {
  run_job(GetParam(), [&](World& world, int rank) {
    constexpr int kTensors = 40;
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<float>> data;
      std::vector<int> order(kTensors);
      for (int i = 0; i < kTensors; ++i) {
        order[static_cast<std::size_t>(i)] = i;
        data.emplace_back(static_cast<std::size_t>(1 + i * 37), static_cast<float>(rank + i));
      }
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Handle> handles;
      for (const int i : order) {
        auto handle = world.start(
            only(allreduce_of("tensor." + std::to_string(i), data[static_cast<std::size_t>(i)])),
            {});
        ASSERT_TRUE(handle.ok()) << handle.status().message();
        handles.push_back(*handle);
      }
      for (const Handle& handle : handles) {
        const auto done = world.wait(handle, {});
        ASSERT_TRUE(done.ok()) << done.status().message();
      }
      const int size = world.topology().size;
      for (int i = 0; i < kTensors; ++i) {
        const auto expected = static_cast<float>(size * i + size * (size - 1) / 2);
        for (const float value : data[static_cast<std::size_t>(i)]) {
          ASSERT_EQ(value, expected);
        }
      }
    }
  });
}

TEST_P(Worlds, every_other_collective_works) {
  run_job(GetParam(), [&](World& world, int rank) {
    const int size = world.topology().size;
    // Allgather with rank + 1 rows of 3.
    std::vector<std::int32_t> rows(static_cast<std::size_t>(rank + 1) * 3, rank);
    Operation gather = bare(OpType::kAllgather);
    gather.name = "gather";
    gather.input = {.data = rows.data(), .dtype = DataType::kInt32, .shape = {rank + 1, 3}};
    auto gathered = run_one(world, gather);
    ASSERT_TRUE(gathered.ok()) << gathered.status().message();
    const Outcome& all = gathered.value()[0];
    ASSERT_EQ(all.shape[0], size * (size + 1) / 2);
    const auto* values = reinterpret_cast<const std::int32_t*>(all.output->data());
    std::size_t at = 0;
    for (int r = 0; r < size; ++r) {
      for (int k = 0; k < (r + 1) * 3; ++k) {
        ASSERT_EQ(values[at++], r);
      }
    }
    // Broadcast from the last rank.
    std::vector<float> data(1000, static_cast<float>(rank));
    Operation broadcast = operation_on(OpType::kBroadcast, "broadcast", data);
    broadcast.request.signature.root_or_peer = size - 1;
    ASSERT_TRUE(run_one(world, broadcast).ok());
    ASSERT_EQ(data[999], static_cast<float>(size - 1));
    // Reducescatter of 2 * size + 1 rows: rank 0 gets one more.
    std::vector<float> input(static_cast<std::size_t>(2 * size + 1) * 2, 1.0F);
    Operation scatter = operation_on(OpType::kReducescatter, "scatter", input);
    scatter.input.shape = {2 * size + 1, 2};
    auto scattered = run_one(world, scatter);
    ASSERT_TRUE(scattered.ok()) << scattered.status().message();
    ASSERT_EQ(scattered.value()[0].shape[0], rank == 0 ? 3 : 2);
    ASSERT_EQ(*reinterpret_cast<const float*>(scattered.value()[0].output->data()),
              static_cast<float>(size));
    // Alltoall, one row each.
    std::vector<float> out_rows(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) {
      out_rows[static_cast<std::size_t>(r)] = static_cast<float>(rank * 100 + r);
    }
    auto exchanged = run_one(world, operation_on(OpType::kAlltoall, "alltoall", out_rows));
    ASSERT_TRUE(exchanged.ok()) << exchanged.status().message();
    const auto* got = reinterpret_cast<const float*>(exchanged.value()[0].output->data());
    for (int r = 0; r < size; ++r) {
      ASSERT_EQ(got[r], static_cast<float>(r * 100 + rank));
    }
    // Barrier, and a transfer from the first to the last.
    const Operation barrier = bare(OpType::kBarrier);
    ASSERT_TRUE(run_one(world, barrier).ok());
    if (size > 1 && (rank == 0 || rank == size - 1)) {
      std::vector<float> message(5, rank == 0 ? 42.0F : 0.0F);
      Operation transfer =
          operation_on(rank == 0 ? OpType::kSend : OpType::kRecv, "transfer", message);
      transfer.request.signature.root_or_peer = rank == 0 ? size - 1 : 0;
      ASSERT_TRUE(run_one(world, transfer).ok());
      ASSERT_EQ(message[4], 42.0F);
    }
    // A rank that left now would end the transfer of the others.
    ASSERT_TRUE(run_one(world, barrier).ok());
  });
}

TEST_P(Worlds, joined_ranks_contribute_zeros_and_all_learn_the_last_one) {
  run_job(GetParam(), [&](World& world, int rank) {
    const int size = world.topology().size;
    for (int step = 0; step < 3; ++step) {
      if (step <= rank) {
        std::vector<float> data(100, 1.0F);
        ASSERT_TRUE(run_one(world, allreduce_of("step" + std::to_string(step), data)).ok());
        EXPECT_EQ(data[0], static_cast<float>(std::max(size - step, 0)));
      }
    }
    const Operation join = bare(OpType::kJoin);
    auto joined = run_one(world, join);
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    EXPECT_GE(joined.value()[0].value, 0);
    EXPECT_LT(joined.value()[0].value, size);
    std::vector<float> data(10, 1.0F);
    ASSERT_TRUE(run_one(world, allreduce_of("step0", data)).ok());
    EXPECT_EQ(data[0], static_cast<float>(size));
  });
}

TEST_P(Worlds, process_sets_can_come_and_go) {
  JobOptions options = GetParam();
  options.environment["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1";
  run_job(options, [&](World& world, int rank) {
    const int size = world.topology().size;
    if (size < 2) {
      return;
    }
    for (int round = 0; round < 3; ++round) {
      Operation add = bare(OpType::kAddProcessSet);
      add.request.ranks = {0, size - 1};
      auto added = run_one(world, add);
      if (size == 2) {
        ASSERT_FALSE(added.ok());  // The same ranks as the global set.
        return;
      }
      ASSERT_TRUE(added.ok()) << added.status().message();
      const auto id = static_cast<std::uint32_t>(added.value()[0].value);
      EXPECT_EQ(id, 1U);
      if (rank == 0 || rank == size - 1) {
        std::vector<float> data(50'000, 1.0F);
        Operation sum = allreduce_of("in_set", data);
        sum.request.signature.process_set = id;
        ASSERT_TRUE(run_one(world, sum).ok());
        EXPECT_EQ(data[49'999], 2.0F);
      }
      const Operation barrier = bare(OpType::kBarrier);
      ASSERT_TRUE(run_one(world, barrier).ok());
      Operation remove = bare(OpType::kRemoveProcessSet);
      remove.request.signature.root_or_peer = static_cast<int>(id);
      ASSERT_TRUE(run_one(world, remove).ok());
    }
  });
}

// Were rank 0 not woken, it would look once a second: a hundred seconds here.
TEST(World, rank_0_serves_sets_that_it_is_not_in_while_it_is_idle) {
  JobOptions options = on_one_host(3);
  options.process_sets = {{1, 2}};
  const auto started = std::chrono::steady_clock::now();
  run_job(options, [](World& world, int rank) {
    for (int i = 0; rank != 0 && i < 100; ++i) {
      std::vector<float> data(4, 1.0F);
      Operation operation = allreduce_of("apart" + std::to_string(i), data);
      operation.request.signature.process_set = 1;
      ASSERT_TRUE(run_one(world, std::move(operation)).ok());
      EXPECT_EQ(data[0], 2.0F);
    }
    const Operation barrier = bare(OpType::kBarrier);
    ASSERT_TRUE(run_one(world, barrier).ok());
  });
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(50));
}

TEST_P(Worlds, batches_that_differ_between_ranks_all_finish) {
  run_job(GetParam(), [](World& world, int rank) {
    constexpr int kTensors = 12;
    std::vector<std::vector<float>> data(kTensors, {static_cast<float>(rank)});
    std::vector<Handle> handles;
    const int batch = rank + 2;
    for (int begin = 0; begin < kTensors; begin += batch) {
      std::vector<Operation> some;
      for (int i = begin; i < std::min(begin + batch, kTensors); ++i) {
        some.push_back(
            allreduce_of("tensor." + std::to_string(i), data[static_cast<std::size_t>(i)]));
      }
      auto handle = world.start(std::move(some), {});
      ASSERT_TRUE(handle.ok()) << handle.status().message();
      handles.push_back(*handle);
    }
    for (const Handle& handle : handles) {
      ASSERT_TRUE(world.wait(handle, {}).ok());
    }
    const int size = world.topology().size;
    for (const auto& tensor : data) {
      EXPECT_EQ(tensor[0], static_cast<float>(size * (size - 1) / 2));
    }
  });
}

TEST(World, an_error_of_one_of_a_batch_leaves_the_others_alone) {
  run_job({}, [](World& world, int rank) {
    std::vector<float> a(4, 1.0F);
    std::vector<float> b(rank == 0 ? 4 : 5, 1.0F);
    std::vector<Operation> batch;
    batch.push_back(allreduce_of("b", b));
    batch.push_back(allreduce_of("a", a));
    auto handle = world.start(std::move(batch), {});
    ASSERT_TRUE(handle.ok());
    const auto failed = world.wait(*handle, {});
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.status().code(), ErrorCode::kMismatch);
    EXPECT_EQ(a[0], static_cast<float>(world.topology().size));
  });
}

std::string name_of(const ::testing::TestParamInfo<JobOptions>& instance) {
  std::string name = "ranks" + std::to_string(instance.param.size);
  for (const int host : instance.param.hosts) {
    name += "_" + std::to_string(host);
  }
  for (const auto& [variable, value] : instance.param.environment) {
    name += "_" + variable + "_" + value;
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Sizes,
                         Worlds,
                         ::testing::Values(on_one_host(1),
                                           on_one_host(2),
                                           on_one_host(3),
                                           on_one_host(4),
                                           on_hosts({0, 1}),
                                           on_hosts({0, 0, 1, 1}),
                                           on_hosts({0, 1, 2, 1, 0}),
                                           in_blocks(2, on_one_host(4)),
                                           in_blocks(2, on_hosts({0, 1, 1, 0, 1, 1}))),
                         name_of);

}  // namespace
}  // namespace lightcc::world_test
