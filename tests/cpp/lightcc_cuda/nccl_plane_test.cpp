// Collectives on tensors of fake GPUs by the fake NCCL, beside the host's plane; what ranks are
// told where it fails, and what they agree on before.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/world.hpp"

#include "doubles/local_store.hpp"
#include "doubles/threads.hpp"
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

using namespace testing;  // NOLINT(google-build-using-namespace)
using fake::operations_of_nccl;

// On one host nccl_enqueued_test has them. What two levels do not carry runs flat beside them.
TEST(NcclPlane, every_operation_has_the_hosts_result_on_hosts_that_differ_and_on_two_levels) {
  for (const JobOptions& options : {on_hosts({0, 0, 1}), on_levels(on_hosts({0, 0, 1, 1}))}) {
    run_nccl_job_on_tensors(options, [](const RankOnGpu& on) {
      for_every_operation_of(on.world, [&](const std::string& name, const Operation& operation) {
        const auto on_host = run_one(on.world, operation);
        expect_same(name, run_one(on.world, on.tensor.put(operation)), on_host, on.tensor, 1e-4F);
        EXPECT_EQ(on.tensor.read(), numbers_of(on.rank)) << name;
      });
      EXPECT_GT(operations_of_nccl(), 0);
    });
  }
}

TEST(NcclPlane, is_the_default_where_a_rank_has_gpus) {
  for (const bool has_gpus : {true, false}) {
    JobOptions options = on_one_host(2);
    options.environment = {{"LIGHT_GPU_OPERATIONS", "auto"}};
    options.has_gpus = has_gpus;
    run_nccl_job_on_tensors(std::move(options), [&](const RankOnGpu& on) {
      ASSERT_TRUE(run_one(on.world, on.tensor.in(OpType::kAllreduce, "t")).ok());
      EXPECT_EQ(on.world.stats().device_buckets.by_own_plane, has_gpus ? 1U : 0U);
    });
  }
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

TEST(NcclPlane, process_sets_come_and_go) {
  JobOptions options = on_one_host(3);
  options.environment["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1";
  run_nccl_job(options, [](World& world, int rank) {
    const Framework framework(rank);
    for (const int first : {0, 1, 0}) {
      Operation add = bare(OpType::kAddProcessSet);
      add.request.ranks = {first, 2};
      const std::int32_t id = value(run_one(world, std::move(add))).front().value;
      if (rank == 2 || rank == first) {
        const Tensor tensor(framework, numbers_of(rank));
        Operation operation = tensor.in(OpType::kBroadcast, "t");
        operation.request.signature.process_set = static_cast<std::uint32_t>(id);
        operation.request.signature.root_or_peer = 2;
        (void)value(run_one(world, std::move(operation)));
        EXPECT_EQ(tensor.read(), numbers_of(2));
      }
      Operation remove = bare(OpType::kRemoveProcessSet);
      remove.request.signature.root_or_peer = id;
      (void)value(run_one(world, std::move(remove)));
    }
  });
}

/// On levels between which shards may be compressed.
JobOptions on_compressing_levels() {
  JobOptions options = on_levels(on_hosts({0, 0, 1, 1}));
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1";
  return options;
}

// By NCCL alone, on two levels, and on levels between which shards are compressed.
TEST(NcclPlane, a_rank_that_has_joined_contributes_zeros) {
  for (const bool compresses : {false, true}) {
    for (const JobOptions& options : {on_one_host(4), on_compressing_levels()}) {
      run_nccl_job_on_tensors(options, [&](const RankOnGpu& on) {
        if (on.rank != 1) {
          Operation operation = on.tensor.in(OpType::kAllreduce, "t");
          if (compresses) {
            operation.request.signature.compression = CompressionSpec{.ratio = 1.0};
          }
          (void)value(run_one(on.world, std::move(operation)));
          EXPECT_EQ(on.tensor.read(), sums_of({0, 2, 3}));
        }
        EXPECT_TRUE(run_one(on.world, bare(OpType::kJoin)).ok());
      });
    }
  }
}

TEST(NcclPlane, a_tensor_on_another_gpu_fails_on_all_ranks_and_the_world_goes_on) {
  run_nccl_job_on_tensors(on_one_host(3), [](const RankOnGpu& on) {
    const Framework another(3);
    const Tensor misplaced(another, numbers_of(on.rank));
    // Under a name that ranks know, whose others say so in few bytes, and under a new one.
    for (int turn = 0; turn < 3; ++turn) {
      const Tensor& brought = on.rank == 1 ? misplaced : on.tensor;
      const auto refused = run_one(on.world, brought.in(OpType::kAllreduce, "t"));
      EXPECT_EQ(refused.status().code(), ErrorCode::kMismatch);
      EXPECT_EQ(refused.status().message(),
                "Mismatched GPUs: rank 1 brought the tensor 'allreduce.t' on cuda:3, but its GPU "
                "for NCCL is cuda:1: the only one that it has, or the one whose number is its "
                "local rank. LIGHT_GPU_OPERATIONS=host takes tensors of any GPU.");
      EXPECT_EQ(misplaced.read(), numbers_of(on.rank));
      EXPECT_TRUE(run_one(on.world, on.tensor.in(OpType::kAllreduce, "t")).ok());
    }
    EXPECT_GT(operations_of_nccl(), 0);
  });
}

TEST(NcclPlane, messages_go_by_way_of_the_host_and_may_lie_on_any_gpu_beside_it) {
  run_nccl_job(on_one_host(2), [](World& world, int rank) {
    const Framework another(3);
    const Tensor tensor(another, numbers_of(rank));
    const int before = operations_of_nccl();
    Operation operation = tensor.in(rank == 0 ? OpType::kSend : OpType::kRecv, "message");
    operation.request.signature.root_or_peer = 1 - rank;
    (void)value(run_one(world, std::move(operation)));
    EXPECT_EQ(tensor.read(), numbers_of(0));
    EXPECT_EQ(operations_of_nccl(), before);
  });
}

// ---- Operations of many communicators, where a GPU has room for one operation at a time.

constexpr int kRanks = 2;

/// Sums many tensors, each in a bucket of its own. Returns how many streams NCCL has had.
int streams_of_job(const std::string& nccl, const std::string& asked = "") {
  JobOptions options = on_one_host(kRanks);
  options.environment = {{"LIGHT_NUM_STREAMS", "4"}};
  if (!asked.empty()) {
    options.environment["NCCL_LAUNCH_ORDER_IMPLICIT"] = asked;
  }
  options.adjust = [](Knobs& knobs) { knobs.nccl_timeout_s = 5; };
  int streams = 0;
  fake::set_nccl(nccl);
  run_nccl_job(std::move(options), [&](World& world, int rank) {
    const Framework framework(rank);
    std::vector<Tensor> tensors;
    tensors.reserve(8);
    std::vector<Operation> operations;
    for (std::size_t i = 0; i < 8; ++i) {
      tensors.emplace_back(framework, numbers_of(rank));
      operations.push_back(tensors.back().in(OpType::kAllreduce, "t" + std::to_string(i)));
      operations.back().request.signature.fusion = {FusionRule::kNone, 0};
    }
    // All at once: one that has ended before the next begins leaves a lane to it.
    (void)value(world.wait(value(world.start(std::move(operations), {})), {}));
    for (const Tensor& tensor : tensors) {
      EXPECT_EQ(tensor.read(), sums_of({0, 1}));
    }
    if (rank == 0) {
      streams = fake::streams_of_nccl();
    }
  });
  return streams;
}

TEST(NcclOrder, operations_of_all_communicators_take_turns_on_one_stream) {
  // NCCL could keep the order, but is not asked to.
  EXPECT_EQ(streams_of_job("room=1,version=22602"), kRanks);
  EXPECT_EQ(streams_of_job("room=1,version=22602", "0"), kRanks);
  // It is asked to, but does not know of that.
  EXPECT_EQ(streams_of_job("room=1,version=22505", "1"), kRanks);
}

TEST(NcclOrder, each_lane_has_a_stream_where_nccl_keeps_the_order) {
  EXPECT_GT(streams_of_job("room=1,ordered=1,version=22602", "1"), kRanks);
}

// ---- Failures.

/// What begins when all ranks have come, and what they are told of it.
struct Trouble {
  JobOptions options;
  std::string told;
  std::string nccl = {};
  std::string gpus = "devices=4";
  std::optional<CompressionSpec> compression = {};
};

/// Reduces tensors until an error comes. Returns what each rank was told.
std::vector<Status> errors_of(const Trouble& trouble) {
  Mutex mutex;
  std::vector<Status> told;
  const auto body = [&](const RankOnGpu& on) {
    wait_for_all(on.world);
    if (on.rank == 0) {
      fake::set(trouble.gpus);
      fake::set_nccl(trouble.nccl);
    }
    wait_for_all(on.world);
    Status failure;
    for (int step = 0; step < 20 && failure.ok(); ++step) {
      Operation operation = on.tensor.in(OpType::kAllreduce, "t");
      operation.request.signature.compression = trouble.compression;
      failure = run_one(on.world, std::move(operation)).status();
    }
    const MutexLock lock(mutex);
    told.push_back(failure);
  };
  run_nccl_job_on_tensors(trouble.options, body, 5000);
  return told;
}

TEST(NcclPlane, a_failure_ends_the_world_on_all_ranks) {
  const JobOptions levels = on_compressing_levels();
  JobOptions patient = on_one_host(2);
  patient.adjust = [](Knobs& knobs) { knobs.nccl_timeout_s = 0.5; };
  const std::string failed = "error of the fake NCCL (NCCL error 3)";
  for (const Trouble& trouble : {
           Trouble{on_one_host(3), failed, "fail=ncclAllReduce:3:3"},
           Trouble{on_one_host(2), "remote process exited", "broken=3"},
           Trouble{patient,
                   "waited for the end of NCCL's ncclAllReduce, which did not come in time",
                   "hangs=3"},
           Trouble{levels, failed, "fail=ncclReduceScatter:3:2"},
           Trouble{levels, failed, "fail=ncclAllGather:3:7"},
           Trouble{levels, "cuMemcpyDtoHAsync", "", "devices=4,fail=cuMemcpyDtoHAsync_v2:2:3"},
           Trouble{levels, "cuMemcpyHtoDAsync", "", "devices=4,fail=cuMemcpyHtoDAsync_v2:2:3"},
           Trouble{levels, failed, "fail=ncclReduceScatter:3:6", "devices=4", CompressionSpec{}},
       }) {
    const bool is_a_call = (trouble.nccl + trouble.gpus).find("fail=") != std::string::npos;
    for (const Status& status : errors_of(trouble)) {
      EXPECT_NE(status.message().find(trouble.told), std::string::npos)
          << trouble.nccl << trouble.gpus << ": " << status.message();
      // A call that fails is one rank's; what NCCL does not end is nobody's.
      EXPECT_EQ(status.rank() >= 0, is_a_call) << status.message();
    }
  }
}

TEST(NcclPlane, an_abort_that_hangs_is_left_behind) {
  fake::set("devices=2");
  fake::set_nccl("hangs=1,lost=1");
  JobOptions options = on_one_host(2);
  options.adjust = [](Knobs& knobs) { knobs.nccl_timeout_s = 0.2; };
  run_job(with_nccl(options), [](World& world, int rank) {
    const Framework framework(rank);
    const Tensor tensor(framework, numbers_of(rank));
    const auto ended = run_one(world, tensor.in(OpType::kAllreduce, "t"));
    EXPECT_NE(ended.status().message().find("which did not come in time"), std::string::npos)
        << ended.status().message();
  });
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
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<Status> statuses(static_cast<std::size_t>(size));
  run_on_threads(size, [&](int rank) {
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
  fake::set_nccl("");
  EXPECT_EQ(fake::live_nccl(), 0);
  return statuses;
}

TEST(NcclPlane, nccl_may_take_longer_to_start_and_end_than_ranks_to_join) {
  const int aborts = fake::aborts_of_nccl();
  for (const Status& status : starts_of(2, "slow=1100", 1)) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(fake::aborts_of_nccl(), aborts);
}

TEST(NcclPlane, a_start_that_fails_on_one_rank_fails_on_all) {
  for (const char* const call : {"ncclCommInitRankConfig", "ncclCommSplit"}) {
    for (const Status& status : starts_of(3, std::string("fail=") + call + ":2:2")) {
      EXPECT_NE(status.message().find(call), std::string::npos) << status.message();
      EXPECT_GE(status.rank(), 0) << status.message();
    }
  }
  EXPECT_GT(fake::aborts_of_nccl(), 0);
  for (const Status& status : starts_of(2, "fail=ncclGetUniqueId:2:1")) {
    EXPECT_NE(status.message().find("ncclGetUniqueId"), std::string::npos) << status.message();
  }
}

// By default a rank may fail, with others that are told so by NCCL or that wait for it in vain.
TEST(NcclPlane, by_default_a_start_that_fails_on_one_rank_goes_by_way_of_the_host_on_all) {
  for (const auto& [nccl, told] :
       {std::pair{"fail=ncclCommInitRankConfig:2:2", "ncclCommInitRankConfig: "},
        std::pair{"absent=2", "ncclCommInitRankConfig: "},
        std::pair{"fail=ncclCommSplit:2:2", "ncclCommSplit: "},
        std::pair{"fail=ncclGetUniqueId:2:1", "ncclGetUniqueId: "}}) {
    JobOptions options = on_one_host(3);
    options.environment = {{"LIGHT_GPU_OPERATIONS", "auto"}};
    options.has_gpus = true;
    fake::set("devices=4");
    fake::set_nccl(nccl);
    ::testing::internal::CaptureStderr();
    run_job(with_nccl(options), [](World& world, int rank) {
      const Framework framework(rank);
      const Tensor tensor(framework, numbers_of(rank));
      ASSERT_TRUE(run_one(world, tensor.in(OpType::kAllreduce, "t")).ok());
      EXPECT_EQ(tensor.read(), sums_of({0, 1, 2}));
      EXPECT_EQ(world.stats().device_buckets.staged, 1U);
    });
    const std::string said = ::testing::internal::GetCapturedStderr();
    const std::string warning = "by way of host memory, and not by NCCL: rank ";
    const std::size_t at = said.find(warning);
    ASSERT_NE(at, std::string::npos) << said;
    EXPECT_NE(said.find(told, at), std::string::npos) << said;
    EXPECT_EQ(said.find("WARN", at), std::string::npos) << said;
    fake::set("");
    fake::set_nccl("");  // Who waits in vain goes on.
    while (fake::live() > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(fake::live_nccl(), 0);
  }
}

// ---- What ranks agree on.

NcclCard card_of(const std::string& uuid, const std::string& host_id = "", int version = 0) {
  NcclCard made;
  made.version = version;
  made.pci_bus_id = "1";
  made.uuid = uuid;
  made.host_id = host_id;
  return made;
}

TEST(NcclAgreement, names_both_versions_where_they_differ) {
  const auto told = why_no_nccl({card_of("a", "", 21805), card_of("b", "", 23203)}, {0, 0});
  EXPECT_EQ(told.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(told.status().message(),
            "rank 0 has NCCL 2.18.5, but rank 1 has NCCL 2.32.3; install the same version for all "
            "ranks, or set LIGHT_GPU_OPERATIONS=host");
}

// A GPU is known by its UUID wherever its ranks are; else by its address on its host.
TEST(NcclAgreement, objects_to_a_gpu_of_two_ranks_and_to_a_rank_without) {
  NcclCard without;
  without.objection = "no NCCL, because it cannot be opened";
  const std::string wants = ", and NCCL wants one for each rank (see CUDA_VISIBLE_DEVICES)";
  const std::string same = "ranks 0 and 1 have the same GPU, GPU-a at 1" + wants;
  struct Ranks {
    std::vector<NcclCard> cards;
    std::vector<int> hosts;
    std::string told;
  };
  for (const Ranks& ranks : {
           Ranks{{card_of(""), {}, card_of("")},
                 {0, 0, 0},
                 "ranks 0 and 2 have the same GPU, at 1" + wants},
           Ranks{{card_of(""), card_of("")}, {0, 1}, ""},
           Ranks{{card_of(""), without}, {0, 0}, "rank 1: no NCCL, because it cannot be opened"},
           Ranks{{card_of("GPU-a"), card_of("GPU-a")}, {0, 0}, same},
           Ranks{{card_of("GPU-a"), card_of("GPU-a")},
                 {0, 1},
                 same},  // In containers of one machine.
           Ranks{{card_of("GPU-a"), card_of("GPU-b")}, {0, 1}, ""},
           Ranks{{card_of("GPU-a", "x"), card_of("GPU-a")}, {0, 0}, same},
           Ranks{{card_of("GPU-a", "x"), card_of("GPU-a", "y")}, {0, 0}, ""},
           // Slices of a GPU are GPUs from 2.30 on.
           Ranks{{card_of("MIG-a", "", 23000), card_of("MIG-b", "", 23000)}, {0, 0}, ""},
           Ranks{{card_of("MIG-a", "", 22907), card_of("MIG-b", "", 22907)},
                 {0, 0},
                 "ranks 0 and 1 have slices (MIG) of one GPU, at 1, which NCCL before 2.30.0 takes "
                 "for the same GPU; this is 2.29.7"},
       }) {
    EXPECT_EQ(value(why_no_nccl(ranks.cards, ranks.hosts)), ranks.told);
  }
}

TEST(NcclAgreement, cards_travel) {
  NcclCard card = card_of("GPU-a", "h", 21805);
  card.objection = "none";
  card.device = 3;
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
int operations_of_reduction(const std::string& gpus, const std::string& nccl = {}) {
  int operations = 0;
  fake::set_nccl(nccl);
  const auto body = [&](World& world, int rank) {
    const Framework framework(gpus == "devices=1" ? 0 : rank);
    const Tensor tensor(framework, numbers_of(rank));
    ASSERT_TRUE(run_one(world, tensor.in(OpType::kAllreduce, "t")).ok());
    if (rank == 0) {
      operations = operations_of_nccl();
    }
  };
  run_nccl_job(on_one_host(2), body, gpus);
  return operations;
}

TEST(NcclPlane, ranks_that_share_a_gpu_go_by_way_of_the_host) {
  EXPECT_EQ(operations_of_reduction("devices=1"), 0);
  EXPECT_EQ(operations_of_reduction("devices=2,mig=1"), 0);  // The fake is NCCL 2.28.9.
}

TEST(NcclPlane, an_nccl_that_uses_gpu_0_for_all_ranks_is_warned_of) {
  for (const std::string version : {"22105", "22403"}) {
    ::testing::internal::CaptureStderr();
    EXPECT_GT(operations_of_reduction("devices=2", "version=" + version), 0);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("NCCL 2.21.5 takes about 0.5 GB of GPU 0") != std::string::npos,
              version == "22105")
        << said;
  }
}

}  // namespace
}  // namespace lightcc::cuda::nccl_plane_test
