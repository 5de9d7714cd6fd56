// Buckets that are packed into a buffer, which the fake NCCL registers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"

namespace lightcc::cuda::nccl_buffer_test {
namespace {

using fake::live_registrations_of_nccl;
using fake::operations_of_nccl;
using fake::Registrations;
using fake::registrations_of_nccl;
using lightcc::testing::bare;
using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
using lightcc::testing::on_one_host;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
using lightcc::testing::run_together;
using testing::Framework;
using testing::run_nccl_job;
using testing::Tensor;

constexpr const char* kRegisters = "version=22305";
constexpr std::size_t kBufferBytes = 65536;

/// Afterwards nothing is registered.
class NcclBufferTest : public ::testing::Test {
 protected:
  void SetUp() override { fake::set_nccl(kRegisters); }
  void TearDown() override { EXPECT_EQ(live_registrations_of_nccl(), 0); }

  int made() const { return registrations_of_nccl().made - before_.made; }
  int ended() const { return registrations_of_nccl().ended - before_.ended; }

 private:
  Registrations before_ = registrations_of_nccl();
};

JobOptions with_buffer(int size, std::size_t bytes = kBufferBytes) {
  JobOptions options = on_one_host(size);
  options.environment["LIGHT_NCCL_BUFFER"] = std::to_string(bytes);
  return options;
}

struct Bucket {
  std::vector<std::size_t> counts;
  ReduceOp op = ReduceOp::kSum;
  DataType dtype = DataType::kFloat32;
  bool in_place = true;
  std::uint32_t process_set = 0;
};

/// Reduces tensors of whole numbers, which every order of addition gives the same sums of.
std::vector<Numbers> reduce(World& world,
                            int rank,
                            const Bucket& bucket,
                            const Framework* framework) {
  std::vector<Numbers> data;
  for (const std::size_t count : bucket.counts) {
    data.push_back(numbers_of(rank + static_cast<int>(data.size()), count));
  }
  std::vector<Tensor> tensors;
  tensors.reserve(data.size());
  std::vector<Operation> operations;
  for (std::size_t i = 0; i < data.size(); ++i) {
    Operation operation = operation_on(OpType::kAllreduce, "t" + std::to_string(i), data[i]);
    operation.request.signature.reduce_op = bucket.op;
    operation.request.signature.process_set = bucket.process_set;
    operation.input.dtype = bucket.dtype;
    operation.input.shape.front() =
        static_cast<std::int64_t>(data[i].size() * sizeof(float) / element_size(bucket.dtype));
    operation.output.reset();
    if (bucket.in_place) {
      operation.output = operation.input;
    }
    if (framework != nullptr) {
      tensors.emplace_back(*framework, data[i]);
      operation = tensors.back().put(std::move(operation));
    }
    operations.push_back(std::move(operation));
  }
  const auto ended = run_together(world, std::move(operations));
  EXPECT_TRUE(ended.ok()) << ended.status().message();
  for (std::size_t i = 0; ended.ok() && i < data.size(); ++i) {
    const Tensor* const tensor = framework == nullptr ? nullptr : &tensors[i];
    if (!bucket.in_place) {
      data[i] = testing::numbers_in(*(*ended)[i].output, tensor);
    } else if (tensor != nullptr) {
      data[i] = tensor->read();
    }
  }
  return data;
}

void wait_for_all(World& world) {
  EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
}

void expect_the_hosts_sums(World& world, int rank, const Bucket& bucket) {
  const Framework framework(world.topology().local_rank);
  const std::vector<Numbers> expected = reduce(world, rank, bucket, nullptr);
  EXPECT_EQ(reduce(world, rank, bucket, &framework), expected);
}

std::vector<std::size_t> many(std::size_t tensors) {
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < tensors; ++i) {
    counts.push_back(1 + i % 23);
  }
  return counts;
}

const std::vector<Bucket>& buckets() {
  static const std::vector<Bucket> all = {
      {.counts = {1000, 77}},
      {.counts = {3, 0, 1, 4096, 5, 17}},
      {.counts = {3, 0, 1, 4096, 5, 17}, .in_place = false},
      {.counts = many(300)},  // More than one launch takes.
      {.counts = {600, 31, 2, 8}, .op = ReduceOp::kMax},
      {.counts = {600, 31, 2, 8}, .op = ReduceOp::kAverage},
      {.counts = {2000, 2, 10, 100}, .dtype = DataType::kInt64, .in_place = false}};
  return all;
}

TEST_F(NcclBufferTest, buckets_have_the_hosts_sums_and_each_communicator_a_registration) {
  run_nccl_job(with_buffer(2), [&](World& world, int rank) {
    for (const Bucket& bucket : buckets()) {
      expect_the_hosts_sums(world, rank, bucket);
    }
    wait_for_all(world);
    EXPECT_EQ(made(), 2);  // Of two ranks, with a lane each.
    EXPECT_EQ(ended(), 0);
    wait_for_all(world);
  });
  EXPECT_EQ(made(), 2);
  EXPECT_EQ(ended(), 2);
}

TEST_F(NcclBufferTest, a_set_that_is_removed_ends_its_registrations) {
  JobOptions options = with_buffer(3);
  options.environment["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1";
  run_nccl_job(options, [&](World& world, int rank) {
    Operation add = bare(OpType::kAddProcessSet);
    add.request.ranks = {0, 2};
    const auto added = run_one(world, std::move(add));
    ASSERT_TRUE(added.ok()) << added.status().message();
    const std::int32_t id = added->front().value;
    if (rank != 1) {
      expect_the_hosts_sums(
          world, rank, {.counts = {500, 30}, .process_set = static_cast<std::uint32_t>(id)});
    }
    expect_the_hosts_sums(world, rank, {.counts = {100, 30}});
    wait_for_all(world);
    EXPECT_EQ(made(), 5);
    Operation remove = bare(OpType::kRemoveProcessSet);
    remove.request.signature.root_or_peer = id;
    EXPECT_TRUE(run_one(world, std::move(remove)).ok());
    wait_for_all(world);
  });
  EXPECT_EQ(made(), 5);
  EXPECT_EQ(ended(), 5);
}

TEST_F(NcclBufferTest, a_bucket_is_one_operation_of_nccl_and_other_tensors_are_not_packed) {
  run_nccl_job(with_buffer(2), [&](World& world, int rank) {
    expect_the_hosts_sums(world, rank, {.counts = {5000}});
    expect_the_hosts_sums(world, rank, {.counts = {16000, 400}});  // More than the buffer takes.
    wait_for_all(world);
    EXPECT_EQ(made(), 0);
    wait_for_all(world);
    const int before = operations_of_nccl();
    wait_for_all(world);
    expect_the_hosts_sums(world, rank, {.counts = {16000, 300}});
    wait_for_all(world);
    EXPECT_EQ(made(), 2);
    EXPECT_EQ(operations_of_nccl() - before, 2);  // Of two ranks.
    wait_for_all(world);
  });
}

TEST_F(NcclBufferTest, without_a_buffer_nothing_is_registered) {
  run_nccl_job(on_one_host(2), [](World& world, int rank) {
    expect_the_hosts_sums(world, rank, {.counts = {1000, 77}});
  });
  EXPECT_EQ(made(), 0);
}

TEST_F(NcclBufferTest, a_rank_that_has_joined_contributes_zeros) {
  run_nccl_job(with_buffer(3), [&](World& world, int rank) {
    if (rank != 1) {
      const Framework framework(rank);
      const std::vector<Numbers> got = reduce(world, rank, {.counts = {900, 5, 60}}, &framework);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const int shift = static_cast<int>(i);
        for (std::size_t k = 0; k < got[i].size(); ++k) {
          ASSERT_EQ(got[i][k],
                    numbers_of(shift, got[i].size())[k] + numbers_of(2 + shift, got[i].size())[k]);
        }
      }
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
    wait_for_all(world);
    EXPECT_EQ(made(), 3);
    wait_for_all(world);
  });
}

// ---- What an NCCL or a driver may lack.

TEST_F(NcclBufferTest, an_nccl_that_registers_nothing_takes_packed_buckets_as_well) {
  for (const char* const settings : {"version=21805", "version=22305,unregistered=1"}) {
    fake::set_nccl(settings);
    run_nccl_job(with_buffer(2), [](World& world, int rank) {
      wait_for_all(world);
      const int before = operations_of_nccl();
      wait_for_all(world);
      expect_the_hosts_sums(world, rank, {.counts = {1000, 77, 5, 6, 7}});
      wait_for_all(world);
      EXPECT_EQ(operations_of_nccl() - before, 2);
      wait_for_all(world);
    });
    EXPECT_EQ(made(), 0) << settings;
  }
}

TEST_F(NcclBufferTest, tensors_are_copied_one_by_one_where_the_driver_loads_no_kernel) {
  run_nccl_job(
      with_buffer(2),
      [](World& world, int rank) {
        for (const Bucket& bucket : buckets()) {
          expect_the_hosts_sums(world, rank, bucket);
        }
        EXPECT_EQ(fake::launches(), 0);
      },
      "devices=4,ptx=0");
  EXPECT_EQ(made(), 2);
  EXPECT_EQ(ended(), 2);
}

// ---- Failures.

/// What each of two ranks is told when buckets meet what `settings` say.
std::vector<Status> errors_of(const std::string& settings, const std::string& gpus = "devices=4") {
  Mutex mutex;
  std::vector<Status> told;
  fake::set_nccl(std::string(kRegisters) + ',' + settings);
  run_nccl_job(
      with_buffer(2),
      [&](World& world, int rank) {
        const Framework framework(rank);
        Numbers data = numbers_of(rank);
        const Tensor tensors[] = {{framework, data}, {framework, data}};
        std::vector<Operation> operations;
        for (const Tensor& tensor : tensors) {
          const std::string name = "t" + std::to_string(operations.size());
          operations.push_back(tensor.put(operation_on(OpType::kAllreduce, name, data)));
        }
        const Status status = run_together(world, std::move(operations)).status();
        const MutexLock lock(mutex);
        told.push_back(status);
      },
      gpus);
  EXPECT_EQ(told.size(), 2U);
  return told;
}

TEST_F(NcclBufferTest, a_buffer_that_cannot_be_made_or_registered_is_an_error_of_all_ranks) {
  const std::pair<const char*, const char*> failures[] = {
      {"fail=ncclCommRegister:2:2", "ncclCommRegister: error of the fake NCCL (NCCL error 2)"},
      {"fail=ncclCommRegister:5:1", "ncclCommRegister: error of the fake NCCL (NCCL error 5)"},
      {"fail=ncclMemAlloc:1:1", "ncclMemAlloc: error of the fake NCCL (NCCL error 1)"}};
  for (const auto& [settings, text] : failures) {
    for (const Status& status : errors_of(settings)) {
      EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
      EXPECT_GE(status.rank(), 0) << status.message();
    }
  }
}

TEST_F(NcclBufferTest, a_registration_of_a_communicator_that_is_aborted_is_not_ended) {
  for (const Status& status : errors_of("broken=1")) {
    EXPECT_NE(status.message().find("remote process exited"), std::string::npos)
        << status.message();
  }
  // One rank may hear of the failure before it has made its buffer.
  EXPECT_GE(made(), 1);
  EXPECT_EQ(ended(), 0);
}

TEST_F(NcclBufferTest, one_that_cannot_be_ended_goes_with_its_communicator) {
  for (const Status& status : errors_of("fail=ncclCommDeregister:3:1")) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(made(), 2);
  EXPECT_EQ(ended(), 1);
}

}  // namespace
}  // namespace lightcc::cuda::nccl_buffer_test
