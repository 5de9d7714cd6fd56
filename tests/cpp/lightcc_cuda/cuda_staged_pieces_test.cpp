// All-reduces, broadcasts and all-gathers of the fake GPU's tensors in pieces: the host's bits,
// while copies and reductions overlap in a bounded part of pinned memory.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/staged/staged_pieces.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"

namespace lightcc::cuda::cuda_staged_pieces_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

/// A piece has a page, as pinned memory comes in pages.
constexpr std::size_t kPieceBytes = 4096;
constexpr std::size_t kPiece = kPieceBytes / sizeof(float);

JobOptions in_pieces(JobOptions options) {
  options.adjust = [](Knobs& knobs) { knobs.staged_piece_bytes = kPieceBytes; };
  return options;
}

class CudaStagedPieces : public ::testing::TestWithParam<bool> {
 protected:
  static JobOptions job() {
    return in_pieces(GetParam() ? on_hosts({0, 0, 1, 1}) : on_one_host(4));
  }
};
INSTANTIATE_TEST_SUITE_P(OneHostAndTwo, CudaStagedPieces, ::testing::Bool());

TEST_P(CudaStagedPieces, give_the_hosts_bits_for_all_sizes) {
  fake::set("delay_us=100");
  run_gpu_job(job(), [&](World& world, int rank) {
    const Framework framework;
    const std::vector<std::size_t> mixed{1, 0, 5, 9 * kPiece + 3, 2, 0, 17, 1};
    std::vector<std::vector<std::size_t>> shapes{mixed, std::vector<std::size_t>(40, 101)};
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, kPiece, kPiece + 1, 3 * kPiece, 10 * kPiece - 7}) {
      shapes.push_back({size});
    }
    for (const auto& counts : shapes) {
      const auto expected = reduce_bucket(world, bucket_of(rank, counts));
      EXPECT_EQ(reduce_bucket(world, bucket_of(rank, counts), {}, {&framework}), expected)
          << counts.front();
    }
  });
}

TEST_P(CudaStagedPieces, give_the_hosts_bits_for_all_reductions) {
  run_gpu_job(job(), [&](World& world, int rank) {
    const Framework framework;
    const std::vector<Numbers> data = bucket_of(rank, {kPiece / 2, 3 * kPiece, 11});
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      for (const bool in_place : {true, false}) {
        const How how{.op = op, .prescale = 0.7, .postscale = 1.3, .in_place = in_place};
        const auto expected = reduce_bucket(world, data, how);
        EXPECT_EQ(reduce_bucket(world, data, how, {&framework}), expected) << reduce_op_name(op);
      }
    }
  });
}

TEST_P(CudaStagedPieces, run_on_the_levels_that_the_whole_bucket_would_run_on) {
  for (const std::size_t threshold : {2 * kPieceBytes, 100 * kPieceBytes}) {
    JobOptions options = in_blocks(2, job());
    options.environment["LIGHT_HIERARCHICAL_THRESHOLD"] = std::to_string(threshold);
    run_gpu_job(options, [](World& world, int rank) {
      const Framework framework;
      const std::vector<Numbers> data = bucket_of(rank, {5 * kPiece});
      const auto expected = reduce_bucket(world, data);
      EXPECT_EQ(reduce_bucket(world, data, {}, {&framework}), expected);
    });
  }
}

TEST_P(CudaStagedPieces, a_rank_that_has_joined_contributes_zeros) {
  run_gpu_job(job(), [](World& world, int rank) {
    const Framework framework;
    if (rank < 3) {
      const Tensor tensor(framework, Numbers(3 * kPiece + 5, static_cast<float>(rank + 1)));
      (void)value(run_one(world, tensor.in(OpType::kAllreduce, "t")));
      EXPECT_EQ(tensor.read(), Numbers(3 * kPiece + 5, 6.0F));
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
  });
}

TEST(CudaStagedPiecesOfOneBucket, may_have_parts_on_several_gpus) {
  fake::set("devices=2,delay_us=100");
  run_gpu_job(in_pieces(on_one_host(2)), [](World& world, int rank) {
    const Framework first(0);
    const Framework second(1);
    // Which GPU has which tensor is not the same on both ranks.
    std::vector<const Framework*> gpus{&first, &second};
    std::rotate(gpus.begin(), gpus.begin() + rank, gpus.end());
    const auto data = bucket_of(rank, {kPiece + 1, kPiece / 2, 3, 2 * kPiece});
    const auto expected = reduce_bucket(world, data);
    EXPECT_EQ(reduce_bucket(world, data, {}, gpus), expected);
  });
}

/// Waits for what happens unless something is wrong; false: it has not.
bool comes(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// The second piece of GPU 0 does not come to the host, so no rank's second reduction can end.
// Meanwhile on GPU 1 the first result goes back, and later pieces come, as many as there is room.
TEST(CudaStagedPiecesPipeline, copies_go_on_while_a_piece_is_reduced_in_bounded_memory) {
  constexpr std::size_t kPieces = 3 * kPiecesAtATime;
  constexpr int kFetched = 1 + static_cast<int>(kPiecesAtATime);
  fake::set("devices=2");
  run_gpu_job(in_pieces(on_one_host(2)), [](World& world, int rank) {
    const Framework framework(rank);
    const Tensor tensor(framework, Numbers(kPieces * kPiece, static_cast<float>(rank + 1)));
    wait_for_all(world);
    if (rank == 1) {
      fake::set("devices=2,hold=0:1");
    }
    wait_for_all(world);
    const Handle handle =
        value(world.start(only(tensor.in(OpType::kAllreduce, "t")), {.waits = true}));
    if (rank == 1) {
      EXPECT_TRUE(comes([&] {
        const fake::Copies copies = fake::copies_of(1);
        return copies.to_device == 1 && copies.to_host == kFetched;
      })) << fake::copies_of(1).to_device
          << " pieces went back, " << fake::copies_of(1).to_host << " came";
      // Rank 0 holds what it has fetched and what it fetches.
      EXPECT_EQ(fake::pinned_growth(), (2 + kPiecesAtATime) * kPieceBytes);
      fake::set("devices=2");
    }
    (void)value(world.wait(handle, {}));
    EXPECT_LE(fake::pinned_growth(), (kPiecesAtATime - 2) * kPieceBytes);
    EXPECT_EQ(tensor.read(), Numbers(kPieces * kPiece, 3.0F));
  });
}

// ---- Broadcasts.

TEST_P(CudaStagedPieces, bring_the_roots_data_to_all_in_place_and_elsewhere) {
  run_gpu_job(job(), [&](World& world, int rank) {
    const Framework framework;
    for (const std::size_t count : {kPiece + 1, 3 * kPiece, 10 * kPiece - 7}) {
      for (const int root : {0, 2}) {
        for (const bool in_place : {true, false}) {
          const Tensor tensor(framework, rough_numbers(rank, count));
          Operation operation = tensor.in(OpType::kBroadcast, "b");
          operation.request.signature.root_or_peer = root;
          if (!in_place) {
            operation.output.reset();
          }
          const auto ended = value(run_one(world, std::move(operation)));
          EXPECT_EQ(in_place ? tensor.read() : numbers_in(*ended.front().output, &tensor),
                    rough_numbers(root, count));
          EXPECT_EQ(tensor.read(), rough_numbers(in_place ? root : rank, count));
        }
      }
    }
  });
}

TEST(CudaStagedBroadcast, copies_from_its_root_alone_and_to_the_others) {
  run_gpu_job(in_pieces(on_one_host(3)), [](World& world, int rank) {
    const Framework framework;
    const Tensor tensor(framework, rough_numbers(rank, 5 * kPiece));
    Operation operation = tensor.in(OpType::kBroadcast, "b");
    operation.request.signature.root_or_peer = 1;
    ASSERT_TRUE(run_one(world, std::move(operation)).ok());
    wait_for_all(world);
    EXPECT_EQ(fake::copies_of(0).to_host, 5);
    EXPECT_EQ(fake::copies_of(0).to_device, 3 + 2 * 5);  // The tensors' first numbers, too.
    wait_for_all(world);
  });
}

// ---- All-gathers.

/// What all members bring, one after another.
Numbers gathered(const std::vector<std::size_t>& counts) {
  Numbers all;
  for (std::size_t member = 0; member < counts.size(); ++member) {
    const Numbers theirs = rough_numbers(static_cast<int>(member), counts[member]);
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  return all;
}

TEST_P(CudaStagedPieces, gather_what_each_brings_however_much_it_is) {
  const std::vector<std::vector<std::size_t>> cases = {{kPiece, kPiece, kPiece, kPiece},
                                                       {kPiece / 4, kPiece / 4, 1, kPiece / 2},
                                                       {5 * kPiece + 3, 0, 1, kPiece - 1},
                                                       {0, 0, 0, 9 * kPiece}};
  fake::set("delay_us=100");
  run_gpu_job(job(), [&](World& world, int rank) {
    const Framework framework;
    for (const auto& counts : cases) {
      const Numbers expected = gathered(counts);
      const Numbers data = rough_numbers(rank, counts[static_cast<std::size_t>(rank)]);
      const Tensor tensor(framework, data);
      const auto ended = value(run_one(world, tensor.in(OpType::kAllgather, "g")));
      EXPECT_EQ(numbers_in(*ended.front().output, &tensor), expected);
      EXPECT_EQ(tensor.read(), data);
    }
  });
}

TEST(CudaStagedAllgather, copies_its_own_to_the_host_and_all_back_in_pieces) {
  fake::set("devices=3");
  run_gpu_job(in_pieces(on_one_host(3)), [](World& world, int rank) {
    const Framework framework(rank);
    Numbers data = rough_numbers(rank, 4 * kPiece);
    // In place: the own part is where it belongs, and is not copied back.
    Numbers all(3 * data.size());
    std::ranges::copy(data, all.begin() + static_cast<std::ptrdiff_t>(data.size()) * rank);
    const Tensor result(framework, all);
    Operation operation = result.in(OpType::kAllgather, "g");
    operation.output = operation.input;
    operation.input.data =
        static_cast<float*>(result.data()) + data.size() * static_cast<std::size_t>(rank);
    operation.input.shape = {static_cast<std::int64_t>(data.size())};
    wait_for_all(world);
    if (rank == 0) {
      fake::set("devices=3");
    }
    wait_for_all(world);
    const auto ended = run_one(world, std::move(operation));
    ASSERT_TRUE(ended.ok()) << ended.status().message();
    EXPECT_EQ(fake::copies_of(rank).to_host, 13);
    EXPECT_EQ(fake::copies_of(rank).to_device, 2 * 13);
    EXPECT_EQ(result.read(), gathered({data.size(), data.size(), data.size()}));
    wait_for_all(world);
    EXPECT_LE(fake::pinned_growth(), 3 * kPiecesAtATime * kPieceBytes);
  });
}

TEST(CudaStagedAllgather, an_output_of_another_shape_fails_on_its_rank_alone) {
  run_gpu_job(in_pieces(on_one_host(2)), [](World& world, int rank) {
    const Framework framework;
    const Numbers data = rough_numbers(rank, 3 * kPiece);
    const Numbers all(6 * kPiece - (rank == 0 ? 1 : 0), 0.0F);
    const Tensor tensor(framework, data);
    const Tensor result(framework, all);
    Operation operation = tensor.in(OpType::kAllgather, "g");
    operation.output = result.in(OpType::kAllgather, "g").input;
    const auto ended = run_one(world, std::move(operation));
    EXPECT_EQ(ended.ok(), rank == 1) << ended.status().message();
    EXPECT_EQ(result.read(), rank == 1 ? gathered({3 * kPiece, 3 * kPiece}) : all);
  });
}

// ---- Many small tensors.

TEST(CudaStagedManyTensors, are_packed_where_that_takes_fewer_calls) {
  struct Case {
    std::vector<std::size_t> counts;
    std::vector<int> calls;  ///< Copies to the host, and to the GPU, and launches.
    std::string settings = {};
  };
  std::vector<std::size_t> with_a_large_one(300, 17);
  with_a_large_one[150] = 200000;
  for (const Case& c :
       {Case{std::vector<std::size_t>(100, 101), {1, 1, 2}},
        // 150 tensors, the large one, then 149. A launch takes 127 of them, with the gaps between.
        Case{with_a_large_one, {3, 3, 8}},
        Case{{5, 101, 7}, {3, 3, 0}},  // They are too few.
        // The GPU has no memory left, and later it has some.
        Case{std::vector<std::size_t>(10, 101), {10, 1, 1}, "fail=cuMemAllocAsync:2:1"}}) {
    run_gpu_job(on_one_host(1), [&](World& world, int rank) {
      const Framework framework;
      const How how{.postscale = 0.5};
      const auto expected = reduce_bucket(world, bucket_of(rank, c.counts), how);
      const auto run = [&](World& where, std::vector<Operation> operations) {
        fake::set(c.settings);
        auto ended = run_together(where, std::move(operations));
        const fake::Copies copies = fake::copies_of(0);
        EXPECT_EQ((std::vector{copies.to_host, copies.to_device, fake::launches()}), c.calls);
        return ended;
      };
      EXPECT_EQ(reduce_bucket(world, bucket_of(rank, c.counts), how, {&framework}, run), expected);
    });
  }
}

TEST(CudaStagedManyTensors, may_lie_at_any_address_and_leave_alone_what_is_between_them) {
  run_gpu_job(on_one_host(2), [](World& world, int /*rank*/) {
    constexpr std::size_t kTensors = 50;
    constexpr std::size_t kStride = 37;
    const Framework framework;
    std::vector<std::uint8_t> bytes(kTensors * kStride + 2);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::uint8_t>(i % 113);
    }
    Numbers numbers(bytes.size() / sizeof(float));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    const Tensor tensor(framework, numbers);
    std::vector<Operation> operations;
    for (std::size_t i = 0; i < kTensors; ++i) {
      const std::size_t count = 1 + i * 5 % 31;
      Operation operation = tensor.in(OpType::kAllreduce, "t" + std::to_string(i));
      operation.input.dtype = DataType::kUint8;
      operation.input.shape = {static_cast<std::int64_t>(count)};
      operation.input.data = static_cast<std::uint8_t*>(tensor.data()) + i * kStride;
      operation.output = operation.input;
      operations.push_back(std::move(operation));
      for (std::size_t k = 0; k < count; ++k) {
        bytes[i * kStride + k] = static_cast<std::uint8_t>(2 * bytes[i * kStride + k]);
      }
    }
    ASSERT_TRUE(run_together(world, std::move(operations)).ok());
    const Numbers got = tensor.read();
    EXPECT_EQ(std::memcmp(got.data(), bytes.data(), bytes.size()), 0);
    EXPECT_GT(fake::launches(), 0);
  });
}

// The second rank's call fails in the middle of a bucket.
TEST(CudaStagedPiecesFailures, end_the_world_with_the_call_wherever_they_come) {
  const auto expect_told = [](const std::string& call, int turn, int code) {
    // From 700 on other calls fail as well, so that another one may be the first.
    const std::string expected = code == 2
                                     ? call.substr(0, call.find('_')) + ": CUDA_ERROR_OUT_OF_MEM"
                                     : ": CUDA_ERROR_ILLEGAL_ADDRESS";
    const std::string failure =
        "fail=" + call + ":" + std::to_string(code) + ":" + std::to_string(turn);
    run_gpu_job(in_pieces(on_one_host(2)), [&](World& world, int rank) {
      const Framework framework;
      const Tensor tensor(framework, Numbers(10 * kPiece));
      wait_for_all(world);
      if (rank == 1) {
        fake::set(failure);
      }
      wait_for_all(world);
      const Status ended = run_one(world, tensor.in(OpType::kAllreduce, "t")).status();
      EXPECT_NE(ended.message().find(expected), std::string::npos)
          << failure << ": " << ended.message();
    });
  };
  for (const int code : {2, 700}) {
    for (const char* const call :
         {"cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuStreamCreateWithPriority"}) {
      expect_told(call, 1, code);
    }
    for (const char* const call : {"cuMemHostAlloc",
                                   "cuMemcpyDtoHAsync_v2",
                                   "cuMemcpyHtoDAsync_v2",
                                   "cuStreamSynchronize"}) {
      for (const int turn : {1, 2, 5, 8}) {
        expect_told(call, turn, code);
      }
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_staged_pieces_test
