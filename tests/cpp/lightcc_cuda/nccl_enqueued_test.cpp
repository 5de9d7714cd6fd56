// Operations that are done when the GPU has been given them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"

namespace lightcc::cuda::nccl_enqueued_test {
namespace {

using lightcc::testing::bare;
using lightcc::testing::for_every_operation;
using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
using lightcc::testing::on_hosts;
using lightcc::testing::on_one_host;
using lightcc::testing::only;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
using testing::Framework;
using testing::numbers_in;
using testing::run_nccl_job;
using testing::Tensor;
using testing::value;

class NcclEnqueued : public ::testing::Test {
 protected:
  void SetUp() override { fake::set_nccl(""); }
};

void nap() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// All ranks come here, and the fake NCCL has other settings then.
void set_nccl_on_all(World& world, int rank, const std::string& settings) {
  ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
  if (rank == 0) {
    fake::set_nccl(settings);
  }
  ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
}

Operation sum_of(const Tensor& tensor, Numbers& data, const std::string& name = "t") {
  Operation operation = tensor.put(operation_on(OpType::kAllreduce, name, data));
  operation.request.signature.reduce_op = ReduceOp::kSum;
  return operation;
}

Status enqueue(World& world, std::vector<Operation> operations) {
  return world.wait(value(world.start(std::move(operations), {})), {}, Until::kEnqueued).status();
}

Numbers sums(int ranks) {
  Numbers all = numbers_of(0);
  for (int rank = 1; rank < ranks; ++rank) {
    std::ranges::transform(all, numbers_of(rank), all.begin(), std::plus<>());
  }
  return all;
}

std::uintptr_t handle_of(const Framework& framework) {
  return reinterpret_cast<std::uintptr_t>(framework.stream());
}

TEST_F(NcclEnqueued, the_host_goes_on_and_a_stream_waits_for_the_result) {
  run_nccl_job(on_one_host(2), [](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    const HostMemory read = value(allocate_pinned_memory(framework.driver(), tensor.bytes()));
    set_nccl_on_all(world, rank, "behind=0");
    const Handle handle = value(world.start(only(sum_of(tensor, data)), {}));
    const auto outcomes = world.wait(handle, {}, Until::kEnqueued);
    ASSERT_TRUE(outcomes.ok()) << outcomes.status().message();
    ASSERT_NE(outcomes->front().end, nullptr);
    EXPECT_FALSE(value(outcomes->front().end->is_finished()));
    EXPECT_FALSE(world.poll(handle));
    EXPECT_TRUE(world.uses_memory(handle));
    EXPECT_EQ(world.stats().device_buckets.unfinished, 1U);
    EXPECT_EQ(world.stats().in_flight, 0U);
    // Nobody finishes it in this time.
    EXPECT_EQ(world.finish([] { return true; }).code(), ErrorCode::kTimeout);

    EXPECT_TRUE(value(world.order(handle, handle_of(framework))));
    const auto source = reinterpret_cast<Address>(tensor.data());
    EXPECT_EQ(framework.driver().call().copy_to_host(
                  read.get(), source, tensor.bytes(), framework.stream()),
              kSuccess);
    nap();
    set_nccl_on_all(world, rank, "");
    EXPECT_TRUE(world.finish({}).ok());
    EXPECT_TRUE(world.poll(handle));
    EXPECT_FALSE(world.uses_memory(handle));
    EXPECT_TRUE(value(world.order(handle, handle_of(framework))));  // Nothing is left to wait for.
    EXPECT_EQ(world.stats().device_buckets.unfinished, 0U);
    framework.wait();
    const auto* const first = static_cast<const float*>(read.get());
    EXPECT_EQ(Numbers(first, first + data.size()), sums(2));
  });
}

TEST_F(NcclEnqueued, the_host_waits_where_that_is_asked_for) {
  run_nccl_job(on_one_host(2), [&](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    set_nccl_on_all(world, rank, "behind=0");
    const Handle handle = value(world.start(only(sum_of(tensor, data)), {}));
    const Status interrupted = world.wait(handle, [] { return true; }).status();
    EXPECT_EQ(interrupted.code(), ErrorCode::kTimeout);
    set_nccl_on_all(world, rank, "");
    EXPECT_TRUE(world.wait(handle, {}).ok());
    EXPECT_TRUE(world.poll(handle));
    EXPECT_EQ(tensor.read(), sums(2));
  });
}

TEST_F(NcclEnqueued, every_operation_has_the_hosts_result_on_a_stream) {
  run_nccl_job(on_one_host(4), [](World& world, int rank) {
    const Framework framework(rank);
    const Tensor tensor(framework, numbers_of(rank));
    for_every_operation(rank, [&](const std::string& name, Operation operation) {
      operation.output.reset();
      if (operation.request.signature.op == OpType::kAlltoall) {
        operation.request.splits = {700, 100, 100, 100};
      }
      auto on_host = run_one(world, operation);
      const Handle handle = value(world.start(only(tensor.put(operation)), {}));
      auto on_gpu = world.wait(handle, {}, Until::kEnqueued);
      ASSERT_TRUE(on_host.ok()) << on_host.status().message();
      ASSERT_TRUE(on_gpu.ok()) << name << ": " << on_gpu.status().message();
      EXPECT_TRUE(value(world.order(handle, handle_of(framework))));
      EXPECT_EQ(on_gpu->front().shape, on_host->front().shape) << name;
      EXPECT_EQ(on_gpu->front().received_splits, on_host->front().received_splits) << name;
      const Numbers got = numbers_in(*on_gpu->front().output, &tensor);
      const Numbers expected = numbers_in(*on_host->front().output, nullptr);
      ASSERT_EQ(got.size(), expected.size()) << name;
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], expected[i], 1e-4F) << name << ", element " << i;
      }
      EXPECT_TRUE(world.finish({}).ok());
    });
    EXPECT_GT(world.stats().device_buckets.by_own_plane, 0U);
    EXPECT_GT(world.stats().device_buckets.staged, 0U);  // Adasum.
  });
}

/// Sums tensors of one bucket again and again, each in place: powers of the number of ranks.
/// Nothing runs before all is enqueued.
void sum_many_times(World& world, int rank, const std::string& version) {
  constexpr int kSteps = 12;
  const Framework framework(rank);
  Numbers ones(500, 1.0F);
  std::vector<Tensor> tensors;
  tensors.reserve(6);
  for (int i = 0; i < 6; ++i) {
    tensors.emplace_back(framework, ones);
  }
  set_nccl_on_all(world, rank, version + ",behind=0");
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Operation> operations;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      operations.push_back(sum_of(tensors[i], ones, "t" + std::to_string(i)));
    }
    ASSERT_TRUE(enqueue(world, std::move(operations)).ok());
  }
  EXPECT_GE(world.stats().device_buckets.unfinished, static_cast<std::uint64_t>(kSteps));
  set_nccl_on_all(world, rank, version);
  ASSERT_TRUE(world.finish({}).ok());
  for (const Tensor& tensor : tensors) {
    EXPECT_EQ(tensor.read(), Numbers(500, static_cast<float>(1 << kSteps)));
  }
  EXPECT_EQ(world.stats().device_buckets.unfinished, 0U);
}

TEST_F(NcclEnqueued, buckets_follow_one_another_on_the_gpu) {
  run_nccl_job(on_one_host(2),
               [](World& world, int rank) { sum_many_times(world, rank, "version=21805"); });
  JobOptions on_lanes = on_one_host(2);
  on_lanes.environment["LIGHT_NUM_STREAMS"] = "2";
  fake::set_nccl("version=22703");
  run_nccl_job(on_lanes,
               [](World& world, int rank) { sum_many_times(world, rank, "version=22703"); });
}

TEST_F(NcclEnqueued, results_that_nobody_keeps_stay_until_the_gpu_has_written_them) {
  run_nccl_job(on_one_host(2), [](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    set_nccl_on_all(world, rank, "behind=0");
    ASSERT_TRUE(enqueue(world, only(tensor.put(operation_on(OpType::kAllgather, "t", data)))).ok());
    nap();
    set_nccl_on_all(world, rank, "");
    EXPECT_TRUE(world.finish({}).ok());
  });
}

TEST_F(NcclEnqueued, a_process_set_is_removed_after_its_operations) {
  JobOptions options = on_one_host(3);
  options.process_sets = {{0, 1}};
  run_nccl_job(options, [](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    const Tensor first(framework, data);
    const Tensor second(framework, data);
    set_nccl_on_all(world, rank, "behind=0");
    std::vector<Operation> operations;
    operations.push_back(sum_of(first, data, "first"));
    operations.push_back(sum_of(second, data, "second"));
    for (Operation& operation : operations) {
      operation.request.signature.process_set = 1;
    }
    if (rank < 2) {
      ASSERT_TRUE(enqueue(world, std::move(operations)).ok());
    }
    Operation removal = bare(OpType::kRemoveProcessSet);
    removal.request.signature.root_or_peer = 1;
    ASSERT_TRUE(run_one(world, std::move(removal)).ok());
    nap();
    set_nccl_on_all(world, rank, "");
    EXPECT_TRUE(world.finish({}).ok());
    EXPECT_EQ(first.read(), rank < 2 ? sums(2) : data);
    EXPECT_EQ(second.read(), rank < 2 ? sums(2) : data);
  });
}

TEST_F(NcclEnqueued, leaving_waits_for_the_gpu) {
  run_nccl_job(on_one_host(2), [](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    set_nccl_on_all(world, rank, "behind=0");
    ASSERT_TRUE(enqueue(world, only(sum_of(tensor, data))).ok());
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    std::thread releases([rank] {
      if (rank == 0) {
        nap();
        fake::set_nccl("");
      }
    });
    EXPECT_TRUE(world.shutdown().ok());
    releases.join();
    EXPECT_EQ(tensor.read(), sums(2));
  });
}

/// What ranks are told where an operation fails after the host is done with it: by `ask`, and by
/// the next operation.
std::vector<Status> told_of_a_failure(JobOptions options,
                                      const std::function<Status(World&)>& ask) {
  Mutex mutex;
  std::vector<Status> told;
  run_nccl_job(std::move(options), [&](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    set_nccl_on_all(world, rank, "broken=1");
    const Handle handle = value(world.start(only(sum_of(tensor, data)), {}));
    Status failed = world.wait(handle, {}, Until::kEnqueued).status();
    failed = failed.ok() ? ask(world) : failed;
    EXPECT_TRUE(world.poll(handle));
    EXPECT_FALSE(world.uses_memory(handle));
    const Status next = run_one(world, sum_of(tensor, data)).status();
    const MutexLock lock(mutex);
    told.push_back(failed);
    told.push_back(next);
  });
  return told;
}

TEST_F(NcclEnqueued, a_failure_that_comes_later_ends_the_world) {
  const std::vector<Status> all =
      told_of_a_failure(on_one_host(2), [](World& world) { return world.finish({}); });
  ASSERT_EQ(all.size(), 4U);
  for (const Status& told : all) {
    EXPECT_NE(told.message().find("remote process exited"), std::string::npos) << told.message();
    EXPECT_EQ(told.message(), all.front().message());
  }
}

TEST_F(NcclEnqueued, nobody_has_to_ask_and_leaving_tells_of_a_failure) {
  const auto shuts_down = [](World& world) { return world.shutdown(); };
  for (const Status& told : told_of_a_failure(on_one_host(2), shuts_down)) {
    EXPECT_FALSE(told.ok());
  }
  const auto looks = [](World& world) {
    while (!world.failed()) {
      nap();
    }
    return world.finish({});
  };
  for (const Status& told : told_of_a_failure(on_one_host(2), looks)) {
    EXPECT_FALSE(told.ok());
  }
}

TEST_F(NcclEnqueued, what_the_host_has_a_part_in_is_waited_for) {
  JobOptions options = on_hosts({0, 0, 1, 1});
  options.environment["LIGHT_2D_ALLREDUCE"] = "1";
  run_nccl_job(options, [](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    ASSERT_TRUE(run_one(world, sum_of(tensor, data)).ok());
    EXPECT_EQ(tensor.read(), sums(4));
    EXPECT_EQ(world.stats().device_buckets.on_levels, 1U);
  });
}

/// Keeps a stream from going on until it is released.
class Hold {
 public:
  explicit Hold(StreamHandle* stream) {
    fake::lightcc_fake_cuda_enqueue(
        stream,
        [](void* held) { (*static_cast<Released*>(held))->wait(false); },
        std::make_unique<Released>(is_released_).release(),
        [](void* held) { const std::unique_ptr<Released> owned(static_cast<Released*>(held)); });
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { release(); }
  void release() {
    *is_released_ = true;
    is_released_->notify_all();
  }

 private:
  using Released = std::shared_ptr<std::atomic<bool>>;
  const Released is_released_ = std::make_shared<std::atomic<bool>>(false);
};

/// For what would otherwise hang.
std::function<bool()> after(std::chrono::seconds patience) {
  return [end = std::chrono::steady_clock::now() + patience] {
    return std::chrono::steady_clock::now() >= end;
  };
}

Operation behind(const Framework& framework, Operation operation) {
  operation.ready = framework.ready_event();
  return operation;
}

TEST_F(NcclEnqueued, the_gpu_waits_for_inputs_and_the_host_does_not) {
  run_nccl_job(on_one_host(2), [&](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    Tensor tensor(framework, Numbers(data.size()));
    Hold hold(framework.stream());
    tensor.write(data);
    const Handle handle = value(world.start(only(behind(framework, sum_of(tensor, data))), {}));
    const auto outcomes = world.wait(handle, after(std::chrono::seconds(60)), Until::kEnqueued);
    EXPECT_TRUE(outcomes.ok()) << outcomes.status().message();
    EXPECT_EQ(world.stats().device_buckets.unfinished, 1U);
    EXPECT_FALSE(world.poll(handle));
    hold.release();
    EXPECT_TRUE(world.finish({}).ok());
    EXPECT_EQ(tensor.read(), sums(2));
  });
}

TEST_F(NcclEnqueued, copies_before_an_operation_wait_for_inputs_as_well) {
  run_nccl_job(on_one_host(4), [](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    for_every_operation(rank, [&](const std::string& name, Operation operation) {
      Tensor tensor(framework, Numbers(data.size()));
      operation.output.reset();
      if (operation.request.signature.op == OpType::kAlltoall) {
        operation.request.splits = {700, 100, 100, 100};
      }
      auto on_host = run_one(world, operation);
      Hold hold(framework.stream());
      tensor.write(data);
      const Handle handle = value(world.start(only(behind(framework, tensor.put(operation))), {}));
      std::thread releases([&hold] {
        nap();
        hold.release();
      });
      auto on_gpu = world.wait(handle, {});
      releases.join();
      ASSERT_TRUE(on_host.ok()) << on_host.status().message();
      ASSERT_TRUE(on_gpu.ok()) << name << ": " << on_gpu.status().message();
      const Numbers got = numbers_in(*on_gpu->front().output, &tensor);
      const Numbers expected = numbers_in(*on_host->front().output, nullptr);
      ASSERT_EQ(got.size(), expected.size()) << name;
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], expected[i], 1e-4F) << name << ", element " << i;
      }
    });
  });
}

TEST_F(NcclEnqueued, letting_go_of_a_result_waits_for_no_stream) {
  run_nccl_job(on_one_host(2), [](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    const Tensor sum(framework, data);
    auto gathered = run_one(world, tensor.put(operation_on(OpType::kAllgather, "g", data)));
    ASSERT_TRUE(gathered.ok()) << gathered.status().message();
    // The GPU of rank 0 waits for that of rank 1, which goes on when it has a message.
    const auto hold = rank == 1 ? std::make_unique<Hold>(framework.stream()) : nullptr;
    ASSERT_TRUE(enqueue(world, only(behind(framework, sum_of(sum, data)))).ok());
    gathered->front().output = nullptr;
    Operation message =
        tensor.put(operation_on(rank == 0 ? OpType::kSend : OpType::kRecv, "message", data));
    message.request.signature.root_or_peer = 1 - rank;
    EXPECT_TRUE(run_one(world, std::move(message)).ok());
  });
}

// One behind another, and both behind what the GPU computes for longer than NCCL may take.
TEST_F(NcclEnqueued, the_time_of_an_operation_does_not_run_while_its_inputs_are_computed) {
  JobOptions options = on_one_host(2);
  options.adjust = [](Knobs& knobs) { knobs.nccl_timeout_s = 0.3; };
  run_nccl_job(options, [](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    const Tensor first(framework, data);
    const Tensor second(framework, data);
    Hold hold(framework.stream());
    ASSERT_TRUE(enqueue(world, only(behind(framework, sum_of(first, data, "first")))).ok());
    ASSERT_TRUE(enqueue(world, only(sum_of(second, data, "second"))).ok());
    for (int i = 0; i < 50; ++i) {
      nap();
    }
    EXPECT_EQ(world.stats().device_buckets.unfinished, 2U);
    hold.release();
    const Status finished = world.finish({});
    EXPECT_TRUE(finished.ok()) << finished.message();
    EXPECT_EQ(first.read(), sums(2));
    EXPECT_EQ(second.read(), sums(2));
  });
}

class Flag final : public ReadyEvent {
 public:
  Result<bool> is_ready() override { return is_set_.load(); }
  void set() { is_set_ = true; }

 private:
  std::atomic<bool> is_set_ = false;
};

TEST_F(NcclEnqueued, inputs_that_no_gpu_can_wait_for_are_waited_for_on_the_host) {
  run_nccl_job(on_one_host(2), [](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    const auto flag = std::make_shared<Flag>();
    Operation operation = sum_of(tensor, data);
    operation.ready = flag;
    const Handle handle = value(world.start(only(std::move(operation)), {}));
    EXPECT_EQ(world.wait(handle, after(std::chrono::seconds(1))).status().code(),
              ErrorCode::kTimeout);
    flag->set();
    EXPECT_TRUE(world.wait(handle, {}).ok());
    EXPECT_TRUE(world.finish({}).ok());
    EXPECT_EQ(tensor.read(), sums(2));
  });
}

TEST_F(NcclEnqueued, failures_while_the_gpu_waits_for_inputs_end_the_world) {
  for (const std::string failure : {"cuStreamWaitEvent:1:0", "cuEventQuery:700:0"}) {
    run_nccl_job(on_one_host(2), [&](World& world, int rank) {
      const Framework framework(rank);
      Numbers data = numbers_of(rank);
      const Tensor tensor(framework, data);
      Hold hold(framework.stream());
      Operation operation = behind(framework, sum_of(tensor, data));
      ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
      fake::set("devices=4,fail=" + failure);
      const Handle handle = value(world.start(only(std::move(operation)), {}));
      std::thread releases([&hold] {  // Else aborting waits for it.
        nap();
        hold.release();
      });
      Status failed =
          world.wait(handle, after(std::chrono::seconds(60)), Until::kEnqueued).status();
      failed = failed.ok() ? world.finish(after(std::chrono::seconds(60))) : failed;
      EXPECT_FALSE(failed.ok());
      EXPECT_NE(failed.code(), ErrorCode::kTimeout);
      releases.join();
    });
    fake::set("devices=4");
  }
}

TEST_F(NcclEnqueued, a_stream_that_is_captured_is_left_alone) {
  run_nccl_job(on_one_host(1), [](World& world, int) {
    const Framework framework;
    Numbers data = numbers_of(0);
    const Tensor tensor(framework, data);
    fake::set_nccl("behind=0");
    const Handle handle = value(world.start(only(sum_of(tensor, data)), {}));
    ASSERT_TRUE(world.wait(handle, {}, Until::kEnqueued).ok());
    fake::set("devices=4,capturing=1");
    EXPECT_FALSE(value(world.order(handle, handle_of(framework))));
    EXPECT_EQ(fake::spoiled_captures_of_graphs(), 0);
    fake::set("devices=4,fail=cuStreamWaitEvent:1:1");
    const Status failed = world.order(handle, handle_of(framework)).status();
    EXPECT_EQ(failed.code(), ErrorCode::kSystem);
    EXPECT_NE(failed.message().find("cuStreamWaitEvent"), std::string::npos) << failed.message();
    fake::set("devices=4");
    fake::set_nccl("");
    EXPECT_TRUE(world.finish({}).ok());
  });
}

}  // namespace
}  // namespace lightcc::cuda::nccl_enqueued_test
