// Collectives on tensors of fake GPUs by the fake NCCL, beside the host's plane.
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "doubles/hash_store.hpp"
#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl/agreement.hpp"
#include "lightcc_cuda/nccl/group.hpp"
#include "lightcc_cuda/nccl/plane.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"
#include "lightcc_cuda/staging/cuda_staging.hpp"

namespace lightcc::cuda::nccl_plane_test {
namespace {

using fake::operations_of_nccl;
using lightcc::testing::bare;
using lightcc::testing::for_every_operation;
using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
using lightcc::testing::on_hosts;
using lightcc::testing::on_one_host;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
using testing::errors_of_nccl_job;
using testing::Framework;
using testing::numbers_in;
using testing::run_nccl_job;
using testing::Tensor;

class NcclPlaneTest : public ::testing::Test {
 protected:
  void SetUp() override { fake::set_nccl(""); }
};

void expect_the_hosts_results(World& world, int rank) {
  const Framework framework(world.topology().local_rank);
  const Tensor tensor(framework, numbers_of(rank));
  for_every_operation(rank, [&](const std::string& name, Operation operation) {
    operation.output.reset();
    if (operation.request.signature.op == OpType::kAlltoall) {
      operation.request.splits.assign(static_cast<std::size_t>(world.topology().size), 100);
      operation.request.splits.front() = 1000 - 100 * (world.topology().size - 1);
    }
    auto on_host = run_one(world, operation);
    auto on_gpu = run_one(world, tensor.put(operation));
    ASSERT_TRUE(on_host.ok()) << on_host.status().message();
    ASSERT_TRUE(on_gpu.ok()) << name << ": " << on_gpu.status().message();
    EXPECT_EQ(on_gpu->front().shape, on_host->front().shape) << name;
    EXPECT_EQ(on_gpu->front().received_splits, on_host->front().received_splits) << name;
    const Numbers got = numbers_in(*on_gpu->front().output, &tensor);
    const Numbers expected = numbers_in(*on_host->front().output, nullptr);
    ASSERT_EQ(got.size(), expected.size()) << name;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], 1e-4F) << name << ", element " << i;
    }
    EXPECT_EQ(tensor.read(), numbers_of(rank)) << name;
  });
  EXPECT_GT(operations_of_nccl(), 0);
}

TEST_F(NcclPlaneTest, gives_the_hosts_results_for_every_operation) {
  run_nccl_job(on_one_host(4), expect_the_hosts_results);
}

TEST_F(NcclPlaneTest, and_for_parts_that_are_not_equal_on_several_hosts) {
  run_nccl_job(on_hosts({0, 0, 1}), expect_the_hosts_results);
}

TEST_F(NcclPlaneTest, buckets_are_counted_by_what_carries_them) {
  run_nccl_job(on_one_host(2), [](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    const auto reduce = [&](ReduceOp op) {
      Operation operation = operation_on(OpType::kAllreduce, "t", data);
      operation.request.signature.reduce_op = op;
      ASSERT_TRUE(run_one(world, tensor.put(std::move(operation))).ok());
    };
    reduce(ReduceOp::kSum);
    reduce(ReduceOp::kMax);
    reduce(ReduceOp::kAdasum);
    ASSERT_TRUE(run_one(world, operation_on(OpType::kAllreduce, "t", data)).ok());
    const DeviceBuckets counted = world.stats().device_buckets;
    EXPECT_EQ(counted.by_own_plane, 2U);
    EXPECT_EQ(counted.staged, 1U);
    EXPECT_EQ(counted.on_levels, 0U);
  });
}

TEST_F(NcclPlaneTest, is_the_default_where_a_rank_has_gpus) {
  for (const bool has_gpus : {true, false}) {
    JobOptions options = on_one_host(2);
    options.environment = {{"LIGHT_GPU_OPERATIONS", "auto"}};
    options.has_gpus = has_gpus;
    run_nccl_job(std::move(options), [&](World& world, int rank) {
      const Framework framework(rank);
      Numbers data = numbers_of(rank);
      const Tensor tensor(framework, data);
      ASSERT_TRUE(run_one(world, tensor.put(operation_on(OpType::kAllreduce, "t", data))).ok());
      EXPECT_EQ(world.stats().device_buckets.by_own_plane, has_gpus ? 1U : 0U);
    });
  }
}

TEST_F(NcclPlaneTest, a_world_of_one_rank_has_it_too) {
  run_nccl_job(on_one_host(1), [](World& world, int) {
    const Framework framework;
    Numbers data = numbers_of(3);
    const Tensor tensor(framework, data);
    Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
    ASSERT_TRUE(run_one(world, std::move(operation)).ok());
    EXPECT_EQ(tensor.read(), numbers_of(3));
    EXPECT_GT(operations_of_nccl(), 0);
  });
}

struct Case {
  DataType dtype;
  ReduceOp op;
  double prescale;
  bool is_for_nccl;
};

TEST(NcclSignatures, what_nccl_cannot_do_is_staged) {
  const Case cases[] = {{DataType::kFloat32, ReduceOp::kSum, 1.0, true},
                        {DataType::kBfloat16, ReduceOp::kAverage, 0.5, true},
                        {DataType::kFloat16, ReduceOp::kSum, 0.5, true},
                        {DataType::kFloat64, ReduceOp::kProduct, 1.0, true},
                        {DataType::kFloat32, ReduceOp::kMax, 0.5, false},
                        {DataType::kFloat32, ReduceOp::kAdasum, 1.0, false},
                        {DataType::kInt64, ReduceOp::kSum, 1.0, true},
                        {DataType::kInt64, ReduceOp::kAverage, 1.0, false},
                        {DataType::kInt32, ReduceOp::kSum, 0.5, false},
                        {DataType::kInt16, ReduceOp::kSum, 1.0, false},
                        {DataType::kBool, ReduceOp::kMax, 1.0, false}};
  Signature signature;
  for (const Case& one : cases) {
    for (const OpType op : {OpType::kAllreduce, OpType::kReducescatter}) {
      signature.op = op;
      signature.dtype = one.dtype;
      signature.reduce_op = one.op;
      signature.prescale = one.prescale;
      LIGHTCC_TRACE(data_type_name(one.dtype)
                    << " " << reduce_op_name(one.op) << " " << one.prescale);
      EXPECT_EQ(is_for_nccl(signature), one.is_for_nccl);
    }
    signature.op = OpType::kBroadcast;
    EXPECT_TRUE(is_for_nccl(signature));
    signature.op = OpType::kSend;
    EXPECT_FALSE(is_for_nccl(signature));
  }
}

TEST_F(NcclPlaneTest, scales_float_sums_and_combines_every_operator) {
  run_nccl_job(on_one_host(2), [](World& world, int rank) {
    const Framework framework(rank);
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const bool is_scaled = op == ReduceOp::kSum || op == ReduceOp::kAverage;
      Numbers data = numbers_of(rank);
      const Tensor tensor(framework, data);
      Operation on_host = operation_on(OpType::kAllreduce, "t", data);
      on_host.request.signature.reduce_op = op;
      on_host.request.signature.prescale = is_scaled ? 0.5 : 1.0;
      on_host.request.signature.postscale = is_scaled ? 0.25 : 1.0;
      Operation on_gpu = tensor.put(on_host);
      ASSERT_TRUE(run_one(world, std::move(on_host)).ok());
      const auto reduced = run_one(world, std::move(on_gpu));
      ASSERT_TRUE(reduced.ok()) << reduced.status().message();
      EXPECT_EQ(tensor.read(), data) << reduce_op_name(op);
    }
  });
}

TEST_F(NcclPlaneTest, process_sets_come_and_go) {
  JobOptions options = on_one_host(3);
  options.environment["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1";
  run_nccl_job(options, [](World& world, int rank) {
    const Framework framework(rank);
    for (int turn = 0; turn < 3; ++turn) {
      Operation add = bare(OpType::kAddProcessSet);
      add.request.ranks = {turn == 1 ? 1 : 0, 2};
      const auto added = run_one(world, std::move(add));
      ASSERT_TRUE(added.ok()) << added.status().message();
      const std::int32_t id = added->front().value;
      if (rank == 2 || rank == (turn == 1 ? 1 : 0)) {
        Numbers data = numbers_of(rank);
        const Tensor tensor(framework, data);
        Operation operation = tensor.put(operation_on(OpType::kBroadcast, "t", data));
        operation.request.signature.process_set = static_cast<std::uint32_t>(id);
        operation.request.signature.root_or_peer = 2;
        const auto ended = run_one(world, std::move(operation));
        ASSERT_TRUE(ended.ok()) << ended.status().message();
        EXPECT_EQ(tensor.read(), numbers_of(2));
      }
      Operation remove = bare(OpType::kRemoveProcessSet);
      remove.request.signature.root_or_peer = id;
      const auto removed = run_one(world, std::move(remove));
      ASSERT_TRUE(removed.ok()) << removed.status().message();
    }
  });
}

TEST_F(NcclPlaneTest, a_rank_that_has_joined_contributes_zeros) {
  run_nccl_job(on_one_host(3), [](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    if (rank != 1) {
      Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
      operation.request.signature.reduce_op = ReduceOp::kSum;
      const auto reduced = run_one(world, std::move(operation));
      ASSERT_TRUE(reduced.ok()) << reduced.status().message();
      const Numbers got = tensor.read();
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], numbers_of(0)[i] + numbers_of(2)[i]) << i;
      }
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
  });
}

TEST_F(NcclPlaneTest, a_tensor_on_another_gpu_fails_on_all_ranks_and_the_world_goes_on) {
  run_nccl_job(on_one_host(3), [](World& world, int rank) {
    Numbers data = numbers_of(rank);
    const Framework own(rank);
    const Framework another(3);
    const Tensor tensor(own, data);
    const Tensor misplaced(another, data);
    const auto reduces = [&](const Tensor& brought) {
      return brought.put(operation_on(OpType::kAllreduce, "t", data));
    };
    // Under a name that ranks know, whose others say so in few bytes, and under a new one.
    for (int turn = 0; turn < 3; ++turn) {
      const auto refused = run_one(world, reduces(rank == 1 ? misplaced : tensor));
      EXPECT_EQ(refused.status().code(), ErrorCode::kMismatch);
      EXPECT_EQ(refused.status().message(),
                "Mismatched GPUs: rank 1 brought the tensor 'allreduce.t' on cuda:3, but its GPU "
                "for NCCL is cuda:1: the only one that it has, or the one whose number is its "
                "local rank. LIGHT_GPU_OPERATIONS=host takes tensors of any GPU.");
      EXPECT_EQ(misplaced.read(), data);
      const Tensor fresh(own, data);
      EXPECT_TRUE(run_one(world, reduces(fresh)).ok());
    }
    EXPECT_GT(operations_of_nccl(), 0);
  });
}

TEST_F(NcclPlaneTest, messages_go_by_way_of_the_host_and_may_lie_on_any_gpu_beside_it) {
  run_nccl_job(on_one_host(2), [](World& world, int rank) {
    const Framework another(3);
    Numbers data = numbers_of(rank);
    const Tensor tensor(another, data);
    const int before = operations_of_nccl();
    Operation operation =
        tensor.put(operation_on(rank == 0 ? OpType::kSend : OpType::kRecv, "message", data));
    operation.request.signature.root_or_peer = 1 - rank;
    const auto passed = run_one(world, std::move(operation));
    EXPECT_TRUE(passed.ok()) << passed.status().message();
    EXPECT_EQ(tensor.read(), numbers_of(0));
    EXPECT_EQ(operations_of_nccl(), before);
  });
}

// ---- Failures.

/// Reduces until an error comes; what each rank was told.
std::vector<Status> errors_of(JobOptions options, const std::function<void()>& begin_trouble) {
  return errors_of_nccl_job(std::move(options), 1000, begin_trouble);
}

TEST_F(NcclPlaneTest, an_operation_that_fails_ends_the_world_on_all_ranks) {
  for (const Status& status :
       errors_of(on_one_host(3), [] { fake::set_nccl("fail=ncclAllReduce:3:3"); })) {
    EXPECT_NE(status.message().find("error of the fake NCCL (NCCL error 3)"), std::string::npos)
        << status.message();
    EXPECT_GE(status.rank(), 0) << status.message();
  }
}

TEST_F(NcclPlaneTest, an_asynchronous_error_ends_what_runs) {
  for (const Status& status : errors_of(on_one_host(2), [] { fake::set_nccl("broken=3"); })) {
    EXPECT_NE(status.message().find("remote process exited"), std::string::npos)
        << status.message();
  }
}

TEST_F(NcclPlaneTest, an_operation_that_does_not_end_is_a_timeout) {
  JobOptions options = on_one_host(2);
  options.adjust = [](Knobs& knobs) { knobs.nccl_timeout_s = 0.5; };
  for (const Status& status : errors_of(options, [] { fake::set_nccl("hangs=3"); })) {
    EXPECT_NE(status.message().find("waited for the end of NCCL's ncclAllReduce, which did not "
                                    "come in time"),
              std::string::npos)
        << status.message();
  }
}

TEST_F(NcclPlaneTest, an_abort_that_hangs_is_left_behind) {
  fake::set("devices=2");
  auto stagings = std::array{make_staging(), make_staging()};
  JobOptions options = on_one_host(2);
  options.environment = {{"LIGHT_GPU_OPERATIONS", "nccl"}};
  options.adjust = [](Knobs& knobs) { knobs.nccl_timeout_s = 0.2; };
  options.planes = [&](int rank) {
    return std::vector<PlaneMaker>{make_nccl_plane(stagings.at(static_cast<std::size_t>(rank)))};
  };
  options.staging = [&](int rank) { return stagings.at(static_cast<std::size_t>(rank)); };
  fake::set_nccl("hangs=1,lost=1");
  lightcc::testing::run_job(options, [](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    const auto ended = run_one(world, tensor.put(operation_on(OpType::kAllreduce, "t", data)));
    EXPECT_NE(ended.status().message().find("which did not come in time"), std::string::npos)
        << ended.status().message();
  });
  stagings = {};
  EXPECT_GT(fake::live(), 0);
  fake::set_nccl("");  // From here on it ends.
  while (fake::live() > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(fake::live_nccl(), 0);
}

/// What each rank is told when a world is made, which then ends.
std::vector<Status> starts_of(int size,
                              const std::string& nccl_settings,
                              double start_timeout_s = 30) {
  fake::set("devices=4");
  fake::set_nccl(nccl_settings);
  const std::shared_ptr<Store> store = make_hash_store();
  std::vector<Status> statuses(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      WorldOptions options;
      options.knobs.gpu_operations = "nccl";
      options.knobs.start_timeout_s = start_timeout_s;
      options.epoch.rank = rank;
      options.epoch.size = size;
      options.epoch.store = store;
      options.epoch.key_prefix = "test";
      options.epoch.secret = "secret";
      options.epoch.rendezvous_address = "127.0.0.1:1";
      const auto staging = make_staging();
      options.staging = {staging};
      options.planes = {make_nccl_plane(staging)};
      const auto world = World::create(std::move(options));
      statuses[static_cast<std::size_t>(rank)] = world.status();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  fake::set_nccl("");
  EXPECT_EQ(fake::live_nccl(), 0);
  return statuses;
}

TEST_F(NcclPlaneTest, nccl_may_take_longer_to_start_and_end_than_ranks_to_join) {
  const int aborts = fake::aborts_of_nccl();
  for (const Status& status : starts_of(2, "slow=2200", 2)) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(fake::aborts_of_nccl(), aborts);
}

TEST_F(NcclPlaneTest, a_start_that_fails_on_one_rank_fails_on_all) {
  for (const char* const call : {"ncclCommInitRankConfig", "ncclCommSplit"}) {
    for (const Status& status : starts_of(3, std::string("fail=") + call + ":2:2")) {
      EXPECT_NE(status.message().find(call), std::string::npos) << status.message();
    }
  }
  EXPECT_GT(fake::aborts_of_nccl(), 0);
  for (const Status& status : starts_of(2, "fail=ncclGetUniqueId:2:1")) {
    EXPECT_NE(status.message().find("ncclGetUniqueId"), std::string::npos) << status.message();
  }
}

// ---- What ranks agree on.

NcclCard card_at(const std::string& bus, int version = 21805) {
  NcclCard card;
  card.version = version;
  card.pci_bus_id = bus;
  return card;
}

TEST(NcclAgreement, names_both_versions_where_they_differ) {
  const auto told = why_no_nccl({card_at("1"), card_at("2", 23203)}, {0, 0});
  EXPECT_EQ(told.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(told.status().message(),
            "rank 0 has NCCL 2.18.5, but rank 1 has NCCL 2.32.3; install the same version for all "
            "ranks, or set LIGHT_GPU_OPERATIONS=host");
}

TEST(NcclAgreement, objects_to_a_gpu_of_two_ranks_and_to_a_rank_without) {
  EXPECT_EQ(why_no_nccl({card_at("1"), card_at("2"), card_at("1")}, {0, 0, 0}).value(),
            "ranks 0 and 2 have the same GPU, at 1, and NCCL wants one for each rank (see "
            "CUDA_VISIBLE_DEVICES)");
  EXPECT_EQ(why_no_nccl({card_at("1"), card_at("1")}, {0, 1}).value(), "");
  NcclCard without;
  without.objection = "no NCCL, because it cannot be opened";
  EXPECT_EQ(why_no_nccl({card_at("1"), without}, {0, 0}).value(),
            "rank 1: no NCCL, because it cannot be opened");
}

/// The card of a GPU whose driver tells its UUID.
NcclCard card_of(const std::string& uuid, const std::string& bus, int version = 21805) {
  NcclCard card = card_at(bus, version);
  card.uuid = uuid;
  return card;
}

TEST(NcclAgreement, a_gpu_is_the_same_by_its_uuid_wherever_its_ranks_are) {
  const std::string same =
      "ranks 0 and 1 have the same GPU, GPU-a at 1, and NCCL wants one for each rank (see "
      "CUDA_VISIBLE_DEVICES)";
  EXPECT_EQ(why_no_nccl({card_of("GPU-a", "1"), card_of("GPU-a", "1")}, {0, 0}).value(), same);
  // In two containers of one machine.
  EXPECT_EQ(why_no_nccl({card_of("GPU-a", "1"), card_of("GPU-a", "1")}, {0, 1}).value(), same);
  EXPECT_EQ(why_no_nccl({card_of("GPU-a", "1"), card_of("GPU-b", "1")}, {0, 1}).value(), "");
  NcclCard one = card_of("GPU-a", "1");
  NcclCard other = one;
  one.host_id = "x";
  EXPECT_EQ(why_no_nccl({one, other}, {0, 0}).value(), same);
  other.host_id = "y";
  EXPECT_EQ(why_no_nccl({one, other}, {0, 0}).value(), "");
}

TEST(NcclAgreement, slices_of_a_gpu_are_gpus_from_2_30_on) {
  const auto told_by = [](int version) {
    return why_no_nccl({card_of("MIG-a", "1", version), card_of("MIG-b", "1", version)}, {0, 0})
        .value();
  };
  EXPECT_EQ(told_by(23000), "");
  EXPECT_EQ(told_by(22907),
            "ranks 0 and 1 have slices (MIG) of one GPU, at 1, which NCCL before 2.30.0 takes for "
            "the same GPU; this is 2.29.7");
}

TEST(NcclAgreement, cards_travel) {
  NcclCard card = card_at("0000:65:00.0");
  card.objection = "none";
  card.device = 3;
  card.uuid = "GPU-a";
  card.host_id = "h";
  card.id.bytes[127] = 'x';
  const auto read = decode_card(encode_card(card), 0);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->objection, card.objection);
  EXPECT_EQ(read->version, card.version);
  EXPECT_EQ(read->device, card.device);
  EXPECT_EQ(read->pci_bus_id, card.pci_bus_id);
  EXPECT_EQ(read->uuid, card.uuid);
  EXPECT_EQ(read->host_id, card.host_id);
  EXPECT_EQ(read->id.bytes, card.id.bytes);
  EXPECT_EQ(decode_card({}, 1).status().code(), ErrorCode::kPeerFailed);
}

/// How many operations NCCL carries where each rank reduces one tensor.
int operations_of_reduction(const std::string& gpus) {
  int operations = 0;
  const auto body = [&](World& world, int rank) {
    const Framework framework(gpus == "devices=1" ? 0 : world.topology().local_rank);
    Numbers data = numbers_of(rank);
    const Tensor tensor(framework, data);
    Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
    ASSERT_TRUE(run_one(world, std::move(operation)).ok());
    if (rank == 0) {
      operations = operations_of_nccl();
    }
  };
  run_nccl_job(on_one_host(2), body, gpus);
  return operations;
}

TEST_F(NcclPlaneTest, ranks_that_share_a_gpu_go_by_way_of_the_host) {
  EXPECT_EQ(operations_of_reduction("devices=1"), 0);
  EXPECT_EQ(operations_of_reduction("devices=2,mig=1"), 0);  // The fake is NCCL 2.28.9.
}

TEST_F(NcclPlaneTest, an_nccl_that_uses_gpu_0_for_all_ranks_is_warned_of) {
  for (const std::string version : {"22105", "22403"}) {
    fake::set_nccl("version=" + version);
    ::testing::internal::CaptureStderr();
    EXPECT_GT(operations_of_reduction("devices=2"), 0);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("NCCL 2.21.5 takes about 0.5 GB of GPU 0") != std::string::npos,
              version == "22105")
        << said;
  }
}

TEST_F(NcclPlaneTest, a_driver_without_uuids_has_gpus_told_apart_by_their_addresses) {
  EXPECT_GT(operations_of_reduction("devices=2,without=cuDeviceGetUuid_v2"), 0);
  // Slices differ in their UUIDs alone, which the first of these drivers tells.
  fake::set_nccl("version=23000");
  EXPECT_GT(operations_of_reduction("devices=2,mig=1"), 0);
  fake::set_nccl("version=23000");
  EXPECT_EQ(operations_of_reduction("devices=2,mig=1,without=cuDeviceGetUuid_v2"), 0);
}

}  // namespace
}  // namespace lightcc::cuda::nccl_plane_test
