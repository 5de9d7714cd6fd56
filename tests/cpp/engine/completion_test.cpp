// Completions: run once, by whoever drives, outside all locks, and what they may not do.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "engine/rank_threads.hpp"

namespace lightcc {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

void wait_until(const std::atomic<int>& count, int wanted) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (count.load() < wanted && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(count.load(), wanted);
}

TEST(Completion, tells_the_outcomes_once_without_anybody_waiting) {
  run_job({}, [](World& world, int rank) {
    std::vector<float> a(4, 1.0F);
    std::vector<float> b(4, 2.0F);
    std::vector<Operation> two = only(allreduce_of("a", a));
    two.push_back(operation_on(OpType::kAllgather, "b", b));
    std::atomic<int> calls{0};
    const Status started =
        world.submit(std::move(two),
                     [&](const Result<std::vector<Outcome>>& outcomes) {
                       ASSERT_TRUE(outcomes.ok()) << outcomes.status().message();
                       ASSERT_EQ(outcomes.value().size(), 2U);
                       EXPECT_EQ(outcomes.value()[1].shape, (std::vector<std::int64_t>{8}));
                       EXPECT_EQ(a[0], 2.0F);
                       EXPECT_TRUE(is_in_completion());
                       ++calls;
                     },
                     {});
    ASSERT_TRUE(started.ok()) << started.message();
    wait_until(calls, 1);
    EXPECT_FALSE(is_in_completion());
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    EXPECT_EQ(calls.load(), 1) << "rank " << rank;
  });
}

TEST(Completion, may_start_the_next_operation) {
  run_job({}, [](World& world, int) {
    constexpr int kSteps = 50;
    std::vector<float> data(8, 1.0F);
    std::atomic<int> steps{0};
    std::function<void(Result<std::vector<Outcome>>)> next;
    next = [&](const Result<std::vector<Outcome>>& outcomes) {
      EXPECT_TRUE(outcomes.ok());
      const int step = steps.load() + 1;
      if (step < kSteps) {
        EXPECT_TRUE(world.submit(only(allreduce_of(std::to_string(step), data)), next, {}).ok());
      }
      steps = step;
    };
    std::fill(data.begin(), data.end(), 0.0F);
    ASSERT_TRUE(world.submit(only(allreduce_of("0", data)), next, {}).ok());
    wait_until(steps, kSteps);
  });
}

TEST(Completion, may_wait_and_throw_but_not_leave) {
  run_job({}, [](World& world, int) {
    std::vector<float> data(4, 1.0F);
    std::vector<float> later(4, 1.0F);
    std::atomic<int> calls{0};
    ASSERT_TRUE(world
                    .submit(only(allreduce_of("a", data)),
                            [&](const Result<std::vector<Outcome>>&) {
                              auto handle =
                                  world.start(only(allreduce_of("later", later)), {.waits = true});
                              ASSERT_TRUE(handle.ok());
                              EXPECT_TRUE(world.wait(*handle, {}).ok());
                              EXPECT_EQ(later[0], 2.0F);
                              EXPECT_TRUE(is_in_completion());
                              EXPECT_EQ(world.shutdown().code(), ErrorCode::kInvalidArgument);
                              (void)world.stats();
                              ++calls;
                              throw std::runtime_error("thrown by a test's completion");
                            },
                            {})
                    .ok());
    wait_until(calls, 1);
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
  });
}

TEST(Completion, is_attached_to_a_handle_before_or_after_its_end) {
  run_job({}, [](World& world, int rank) {
    std::vector<float> data(4, 1.0F);
    std::atomic<int> calls{0};
    auto handle = world.start(only(allreduce_of("a", data)), {});
    ASSERT_TRUE(handle.ok());
    if (rank == 0) {
      world.call_when_done(*handle, [&] { ++calls; });
    }
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    ASSERT_TRUE(world.wait(*handle, {}).ok());
    if (rank == 1) {
      world.call_when_done(*handle, [&] { ++calls; });
      EXPECT_EQ(calls.load(), 1) << "it is done, so at once";
    }
    wait_until(calls, 1);
  });
}

TEST(Completion, of_what_is_pending_at_shutdown_or_failure_tells_the_error) {
  for (const bool leaves : {true, false}) {
    std::barrier all_have_submitted(2);  // What comes after the end is refused, and not told.
    run_job({}, [&](World& world, int rank) {
      std::vector<float> data(4, 1.0F);
      std::atomic<int> calls{0};
      const auto done = [&](const Result<std::vector<Outcome>>& outcomes) {
        EXPECT_EQ(outcomes.status().code(), ErrorCode::kShutDown);
        ++calls;
      };
      if (rank == 1 || leaves) {
        // Names differ, so none of them can be carried out.
        EXPECT_TRUE(
            world.submit(only(allreduce_of("lonely" + std::to_string(rank), data)), done, {}).ok());
      }
      all_have_submitted.arrive_and_wait();
      if (rank == 0 || leaves) {
        EXPECT_TRUE(world.shutdown().ok());
        EXPECT_EQ(calls.load(), leaves ? 1 : 0) << "before shutdown() returns";
      } else {
        wait_until(calls, 1);
      }
    });
  }
}

TEST(Completion, cannot_destroy_its_world) {
  std::atomic<int> calls{0};
  WorldOptions options;
  options.knobs = *read_knobs(testing::get_env_from({}));
  auto created = World::create(std::move(options));
  ASSERT_TRUE(created.ok());
  WorldPtr world = std::move(created).value();
  World* const stays = world.get();
  std::vector<float> data(4, 1.0F);
  ASSERT_TRUE(world
                  ->submit(only(allreduce_of("a", data)),
                           [&](const Result<std::vector<Outcome>>&) {
                             world.reset();
                             ++calls;
                           },
                           {})
                  .ok());
  wait_until(calls, 1);
  EXPECT_TRUE(run_one(*stays, allreduce_of("b", data)).ok());
  world.reset(stays);
}

TEST(Completion, is_not_called_for_what_was_refused) {
  run_job({}, [](World& world, int) {
    Operation wrong = bare(OpType::kAllgather);  // A scalar.
    const Status refused = world.submit(
        only(std::move(wrong)), [](const Result<std::vector<Outcome>>&) { ADD_FAILURE(); }, {});
    EXPECT_EQ(refused.code(), ErrorCode::kMismatch);
  });
}

// --- Outputs and ready events --------------------------------------------------------------------

TEST(Outputs, of_the_caller_take_what_is_gathered_scattered_and_exchanged) {
  run_job({}, [](World& world, int rank) {
    std::vector<float> rows = {static_cast<float>(rank), static_cast<float>(10 + rank)};
    for (const OpType op : {OpType::kAllgather, OpType::kAlltoall, OpType::kReducescatter}) {
      std::vector<float> out(op == OpType::kAllgather ? 4 : op == OpType::kAlltoall ? 2 : 1);
      Operation operation = operation_on(op, "t", rows);
      operation.output =
          TensorRef{.data = out.data(), .shape = {static_cast<std::int64_t>(out.size())}};
      const auto done = run_one(world, std::move(operation));
      ASSERT_TRUE(done.ok()) << done.status().message();
      EXPECT_EQ(done.value()[0].output, nullptr);
      const auto r = static_cast<float>(rank);
      EXPECT_EQ(out,
                op == OpType::kAllgather  ? (std::vector<float>{0, 10, 1, 11})
                : op == OpType::kAlltoall ? (std::vector<float>{10 * r, 10 * r + 1})
                                          : (std::vector<float>{20 * r + 1}));
    }
  });
}

TEST(Outputs, of_a_wrong_size_fail_on_their_rank_alone) {
  run_job({}, [](World& world, int rank) {
    std::vector<float> rows(2, 1.0F);
    std::vector<float> out(4);
    Operation operation = operation_on(OpType::kAllgather, "t", rows);
    operation.output = TensorRef{.data = out.data(), .shape = {rank == 0 ? 3 : 4}};
    const auto done = run_one(world, std::move(operation));
    EXPECT_EQ(done.ok(), rank == 1);
    if (rank == 0) {
      EXPECT_EQ(done.status().code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(done.status().message(),
                "the output given for 'allgather.t' has shape [3], but the result has shape [4]");
      EXPECT_EQ(out, std::vector<float>(4)) << "it was not written";
    }
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
  });
}

TEST(Outputs, come_from_the_allocator_when_their_shape_is_known) {
  run_job({}, [](World& world, int rank) {
    std::vector<float> rows(static_cast<std::size_t>(rank) + 1, 5.0F);
    std::vector<float> out;
    Operation operation = operation_on(OpType::kAllgather, "t", rows);
    operation.allocator = [&](const std::vector<std::int64_t>& shape,
                              std::size_t bytes) -> Result<void*> {
      EXPECT_EQ(shape, (std::vector<std::int64_t>{3}));
      EXPECT_EQ(bytes, 12U);
      out.resize(3);
      return static_cast<void*>(out.data());
    };
    ASSERT_TRUE(run_one(world, std::move(operation)).ok());
    EXPECT_EQ(out, std::vector<float>(3, 5.0F));
    Operation refused = operation_on(OpType::kAllgather, "t", rows);
    if (rank == 0) {
      refused.allocator = [](const auto&, std::size_t) -> Result<void*> {
        throw std::runtime_error("no memory today");
      };
    }
    const auto done = run_one(world, std::move(refused));
    EXPECT_EQ(done.ok(), rank == 1);
    EXPECT_EQ(done.status().message(),
              rank == 1 ? ""
                        : "the allocator of 'allgather.t' gave no memory for an output of 12 "
                          "bytes: no memory today");
  });
}

class Flag final : public ReadyEvent {
 public:
  Result<bool> is_ready() override {
    ++asked;
    return set.load();
  }
  std::atomic<bool> set{false};
  std::atomic<int> asked{0};
};

TEST(ReadyEvents, hold_an_operation_back_until_they_come) {
  run_job({}, [](World& world, int rank) {
    std::vector<float> data(4, rank == 0 ? 0.0F : 1.0F);
    const auto event = std::make_shared<Flag>();
    Operation operation = allreduce_of("t", data);
    if (rank == 0) {
      operation.ready = event;
    }
    const auto handle = world.start(only(std::move(operation)), {});
    ASSERT_TRUE(handle.ok());
    if (rank == 0) {
      while (event->asked.load() < 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_FALSE(world.poll(*handle));
      data.assign(4, 1.0F);  // The event tells that this has happened.
      event->set = true;
    }
    ASSERT_TRUE(world.wait(*handle, {}).ok());
    EXPECT_EQ(data, std::vector<float>(4, 2.0F));
  });
}

class Broken final : public ReadyEvent {
 public:
  Result<bool> is_ready() override { return Status(ErrorCode::kSystem, "the device is lost"); }
};

TEST(ReadyEvents, that_fail_end_the_world_for_all) {
  run_job({}, [](World& world, int rank) {
    std::vector<float> data(4, 0.0F);
    Operation operation = allreduce_of("t", data);
    if (rank == 0) {
      operation.ready = std::make_shared<Broken>();
    }
    const auto failed = run_one(world, std::move(operation));
    EXPECT_EQ(failed.status().code(), ErrorCode::kSystem);
    EXPECT_NE(failed.status().message().find("the device is lost"), std::string::npos);
  });
}

}  // namespace
}  // namespace lightcc
