// Operations that are done when the GPU has been given them.
#include <atomic>
#include <chrono>
#include <cstddef>
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

using namespace testing;  // NOLINT(google-build-using-namespace)

void nap() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// All ranks come here, and the fake NCCL has other settings then.
void set_nccl_on_all(World& world, int rank, const std::string& settings) {
  wait_for_all(world);
  if (rank == 0) {
    fake::set_nccl(settings);
  }
  wait_for_all(world);
}

Operation sum_of(const Tensor& tensor, const std::string& name = "t") {
  return tensor.in(OpType::kAllreduce, name);
}

Status enqueue(World& world, std::vector<Operation> operations) {
  return world.wait(value(world.start(std::move(operations), {})), {}, Until::kEnqueued).status();
}

TEST(NcclEnqueued, the_host_goes_on_and_a_stream_waits_for_the_result) {
  run_nccl_job_on_tensors(on_one_host(2), [](const RankOnGpu& on) {
    const auto& [world, rank, framework, tensor] = on;
    const HostMemory read = value(allocate_pinned_memory(framework.driver(), tensor.bytes()));
    set_nccl_on_all(world, rank, "behind=0");
    const Handle handle = value(world.start(only(sum_of(tensor)), {}));
    // The host waits where that is asked for.
    EXPECT_EQ(world.wait(handle, [] { return true; }).status().code(), ErrorCode::kTimeout);
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

    EXPECT_TRUE(value(world.order(handle, framework.handle())));
    const auto source = reinterpret_cast<Address>(tensor.data());
    EXPECT_EQ(framework.driver().call().copy_to_host(
                  read.get(), source, tensor.bytes(), framework.stream()),
              kSuccess);
    nap();
    set_nccl_on_all(world, rank, "");
    EXPECT_TRUE(world.finish({}).ok());
    EXPECT_TRUE(world.poll(handle));
    EXPECT_FALSE(world.uses_memory(handle));
    EXPECT_TRUE(value(world.order(handle, framework.handle())));  // Nothing is left to wait for.
    EXPECT_EQ(world.stats().device_buckets.unfinished, 0U);
    framework.wait();
    const auto* const first = static_cast<const float*>(read.get());
    EXPECT_EQ(Numbers(first, first + 1000), sums_of({0, 1}));
  });
}

/// Sums tensors of one bucket again and again, each in place: powers of the number of ranks.
/// Nothing runs before all is enqueued.
void sum_many_times(World& world, int rank, const std::string& version) {
  constexpr int kSteps = 12;
  const Framework framework(rank);
  const Numbers ones(500, 1.0F);
  std::vector<Tensor> tensors;
  tensors.reserve(6);
  for (int i = 0; i < 6; ++i) {
    tensors.emplace_back(framework, ones);
  }
  set_nccl_on_all(world, rank, version + ",behind=0");
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Operation> operations;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      operations.push_back(sum_of(tensors[i], "t" + std::to_string(i)));
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

TEST(NcclEnqueued, buckets_follow_one_another_on_the_gpu) {
  for (const std::string version : {"version=21805", "version=22703"}) {
    JobOptions options = on_one_host(2);
    if (version == "version=22703") {
      options.environment["LIGHT_NUM_STREAMS"] = "2";
      fake::set_nccl(version);
    }
    run_nccl_job(std::move(options),
                 [&](World& world, int rank) { sum_many_times(world, rank, version); });
  }
}

TEST(NcclEnqueued, results_that_nobody_keeps_stay_until_the_gpu_has_written_them) {
  run_nccl_job_on_tensors(on_one_host(2), [](const RankOnGpu& on) {
    set_nccl_on_all(on.world, on.rank, "behind=0");
    ASSERT_TRUE(enqueue(on.world, only(on.tensor.in(OpType::kAllgather, "t"))).ok());
    nap();
    set_nccl_on_all(on.world, on.rank, "");
    EXPECT_TRUE(on.world.finish({}).ok());
  });
}

TEST(NcclEnqueued, a_process_set_is_removed_after_its_operations) {
  JobOptions options = on_one_host(3);
  options.process_sets = {{0, 1}};
  run_nccl_job_on_tensors(std::move(options), [](const RankOnGpu& on) {
    const auto& [world, rank, framework, first] = on;
    const Tensor second(framework, numbers_of(rank));
    set_nccl_on_all(world, rank, "behind=0");
    std::vector<Operation> operations;
    operations.push_back(sum_of(first, "first"));
    operations.push_back(sum_of(second, "second"));
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
    for (const Tensor* const tensor : {&first, &second}) {
      EXPECT_EQ(tensor->read(), rank < 2 ? sums_of({0, 1}) : numbers_of(2));
    }
  });
}

TEST(NcclEnqueued, leaving_waits_for_the_gpu) {
  run_nccl_job_on_tensors(on_one_host(2), [](const RankOnGpu& on) {
    set_nccl_on_all(on.world, on.rank, "behind=0");
    ASSERT_TRUE(enqueue(on.world, only(sum_of(on.tensor))).ok());
    wait_for_all(on.world);
    std::thread releases([rank = on.rank] {
      if (rank == 0) {
        nap();
        fake::set_nccl("");
      }
    });
    EXPECT_TRUE(on.world.shutdown().ok());
    releases.join();
    EXPECT_EQ(on.tensor.read(), sums_of({0, 1}));
  });
}

// Whatever a rank does next, it is told of that, and so is the next operation.
TEST(NcclEnqueued, a_failure_that_comes_later_ends_the_world) {
  const auto waits = [](World& world) { return world.finish({}); };
  const auto leaves = [](World& world) { return world.shutdown(); };
  const auto looks = [](World& world) {
    while (!world.failed()) {
      nap();
    }
    return world.finish({});
  };
  for (const std::function<Status(World&)>& ask :
       std::vector<std::function<Status(World&)>>{waits, leaves, looks}) {
    run_nccl_job_on_tensors(on_one_host(2), [&](const RankOnGpu& on) {
      const auto& [world, rank, framework, tensor] = on;
      set_nccl_on_all(world, rank, "broken=1");
      const Handle handle = value(world.start(only(sum_of(tensor)), {}));
      Status failed = world.wait(handle, {}, Until::kEnqueued).status();
      failed = failed.ok() ? ask(world) : failed;
      EXPECT_NE(failed.message().find("remote process exited"), std::string::npos)
          << failed.message();
      EXPECT_TRUE(world.poll(handle));
      EXPECT_FALSE(world.uses_memory(handle));
      EXPECT_FALSE(run_one(world, sum_of(tensor)).ok());
    });
  }
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
std::function<bool()> after(std::chrono::milliseconds patience) {
  return [end = std::chrono::steady_clock::now() + patience] {
    return std::chrono::steady_clock::now() >= end;
  };
}

Operation behind(const Framework& framework, Operation operation) {
  operation.ready = framework.ready_event();
  return operation;
}

TEST(NcclEnqueued, the_gpu_waits_for_inputs_and_the_host_does_not) {
  run_nccl_job(on_one_host(2), [](World& world, int rank) {
    const Framework framework(rank);
    Tensor tensor(framework, Numbers(1000));
    Hold hold(framework.stream());
    tensor.write(numbers_of(rank));
    const Handle handle = value(world.start(only(behind(framework, sum_of(tensor))), {}));
    const auto outcomes = world.wait(handle, after(std::chrono::seconds(60)), Until::kEnqueued);
    EXPECT_TRUE(outcomes.ok()) << outcomes.status().message();
    EXPECT_EQ(world.stats().device_buckets.unfinished, 1U);
    EXPECT_FALSE(world.poll(handle));
    hold.release();
    EXPECT_TRUE(world.finish({}).ok());
    EXPECT_EQ(tensor.read(), sums_of({0, 1}));
  });
}

// Copies of NCCL's inputs are behind them as well.
TEST(NcclEnqueued, every_operation_is_behind_its_inputs_and_a_stream_has_the_hosts_result) {
  run_nccl_job(on_one_host(4), [](World& world, int rank) {
    const Framework framework(rank);
    for_every_operation_of(world, [&](const std::string& name, const Operation& operation) {
      const auto on_host = run_one(world, operation);
      Tensor tensor(framework, Numbers(1000));
      Hold hold(framework.stream());
      tensor.write(numbers_of(rank));
      const Handle handle = value(world.start(only(behind(framework, tensor.put(operation))), {}));
      std::thread releases([&hold] {
        nap();
        hold.release();
      });
      const auto on_gpu = world.wait(handle, {}, Until::kEnqueued);
      EXPECT_TRUE(value(world.order(handle, framework.handle())));
      expect_same(name, on_gpu, on_host, tensor, 1e-4F);
      releases.join();
      EXPECT_TRUE(world.finish({}).ok());
    });
    EXPECT_GT(world.stats().device_buckets.by_own_plane, 0U);
    EXPECT_GT(world.stats().device_buckets.staged, 0U);  // Adasum.
  });
}

TEST(NcclEnqueued, letting_go_of_a_result_waits_for_no_stream) {
  run_nccl_job_on_tensors(on_one_host(2), [](const RankOnGpu& on) {
    const auto& [world, rank, framework, tensor] = on;
    const Tensor sum(framework, numbers_of(rank));
    auto gathered = value(run_one(world, tensor.in(OpType::kAllgather, "g")));
    // The GPU of rank 0 waits for that of rank 1, which goes on when it has a message.
    const auto hold = rank == 1 ? std::make_unique<Hold>(framework.stream()) : nullptr;
    ASSERT_TRUE(enqueue(world, only(behind(framework, sum_of(sum)))).ok());
    gathered.front().output = nullptr;
    Operation message = tensor.in(rank == 0 ? OpType::kSend : OpType::kRecv, "message");
    message.request.signature.root_or_peer = 1 - rank;
    EXPECT_TRUE(run_one(world, std::move(message)).ok());
  });
}

// One behind another, and both behind what the GPU computes for longer than NCCL may take.
TEST(NcclEnqueued, the_time_of_an_operation_does_not_run_while_its_inputs_are_computed) {
  JobOptions options = on_one_host(2);
  options.adjust = [](Knobs& knobs) { knobs.nccl_timeout_s = 0.3; };
  run_nccl_job_on_tensors(std::move(options), [](const RankOnGpu& on) {
    const auto& [world, rank, framework, first] = on;
    const Tensor second(framework, numbers_of(rank));
    Hold hold(framework.stream());
    ASSERT_TRUE(enqueue(world, only(behind(framework, sum_of(first, "first")))).ok());
    ASSERT_TRUE(enqueue(world, only(sum_of(second, "second"))).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_EQ(world.stats().device_buckets.unfinished, 2U);
    hold.release();
    const Status finished = world.finish({});
    EXPECT_TRUE(finished.ok()) << finished.message();
    EXPECT_EQ(first.read(), sums_of({0, 1}));
    EXPECT_EQ(second.read(), sums_of({0, 1}));
  });
}

class Flag final : public ReadyEvent {
 public:
  Result<bool> is_ready() override { return is_set_.load(); }
  void set() { is_set_ = true; }

 private:
  std::atomic<bool> is_set_ = false;
};

TEST(NcclEnqueued, inputs_that_no_gpu_can_wait_for_are_waited_for_on_the_host) {
  run_nccl_job_on_tensors(on_one_host(2), [](const RankOnGpu& on) {
    const auto flag = std::make_shared<Flag>();
    Operation operation = sum_of(on.tensor);
    operation.ready = flag;
    const Handle handle = value(on.world.start(only(std::move(operation)), {}));
    EXPECT_EQ(on.world.wait(handle, after(std::chrono::milliseconds(200))).status().code(),
              ErrorCode::kTimeout);
    flag->set();
    EXPECT_TRUE(on.world.wait(handle, {}).ok());
    EXPECT_TRUE(on.world.finish({}).ok());
    EXPECT_EQ(on.tensor.read(), sums_of({0, 1}));
  });
}

TEST(NcclEnqueued, failures_while_the_gpu_waits_for_inputs_end_the_world) {
  for (const std::string failure : {"cuStreamWaitEvent:1:0", "cuEventQuery:700:0"}) {
    run_nccl_job_on_tensors(on_one_host(2), [&](const RankOnGpu& on) {
      const auto& [world, rank, framework, tensor] = on;
      Hold hold(framework.stream());
      Operation operation = behind(framework, sum_of(tensor));
      wait_for_all(world);
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
  }
}

TEST(NcclEnqueued, a_stream_that_is_captured_is_left_alone) {
  run_nccl_job_on_tensors(on_one_host(1), [](const RankOnGpu& on) {
    fake::set_nccl("behind=0");
    const Handle handle = value(on.world.start(only(sum_of(on.tensor)), {}));
    ASSERT_TRUE(on.world.wait(handle, {}, Until::kEnqueued).ok());
    fake::set("devices=4,capturing=1");
    EXPECT_FALSE(value(on.world.order(handle, on.framework.handle())));
    EXPECT_EQ(fake::spoiled_captures_of_graphs(), 0);
    fake::set("devices=4,fail=cuStreamWaitEvent:1:1");
    const Status failed = on.world.order(handle, on.framework.handle()).status();
    EXPECT_EQ(failed.code(), ErrorCode::kSystem);
    EXPECT_NE(failed.message().find("cuStreamWaitEvent"), std::string::npos) << failed.message();
    fake::set("devices=4");
    fake::set_nccl("");
    EXPECT_TRUE(on.world.finish({}).ok());
  });
}

}  // namespace
}  // namespace lightcc::cuda::nccl_enqueued_test
