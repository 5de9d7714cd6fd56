// All-reduces of the fake GPU's tensors in pieces: the host's bits, while copies and reductions
// overlap in a bounded part of pinned memory.
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

#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/staged/staged_pieces.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"

namespace lightcc::cuda::cuda_staged_pieces_test {
namespace {

using lightcc::testing::bare;
using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::on_hosts;
using lightcc::testing::on_one_host;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
using testing::Framework;
using testing::run_gpu_job;
using testing::Tensor;

/// A piece has a page, as pinned memory comes in pages.
constexpr std::size_t kPieceBytes = 4096;
constexpr std::size_t kPiece = kPieceBytes / sizeof(float);

JobOptions in_pieces(JobOptions options) {
  options.adjust = [](Knobs& knobs) { knobs.staged_piece_bytes = kPieceBytes; };
  return options;
}

/// Numbers whose sum depends on the order of its terms.
Numbers rough_numbers(int rank, std::size_t count) {
  Numbers numbers = lightcc::testing::numbers_of(rank, count);
  for (float& number : numbers) {
    number /= 3.0F;
  }
  return numbers;
}

/// All-reduces tensors of so many elements as one bucket; their results, tensor by tensor.
std::vector<Numbers> reduce(World& world,
                            int rank,
                            const std::vector<std::size_t>& counts,
                            const Reduction& how,
                            const Framework* framework,
                            bool in_place = true) {
  std::vector<Numbers> data;
  std::vector<Operation> operations;
  std::vector<Tensor> tensors;
  data.reserve(counts.size());
  tensors.reserve(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    data.push_back(rough_numbers(rank + static_cast<int>(i), counts[i]));
    Operation operation = operation_on(OpType::kAllreduce, "t" + std::to_string(i), data.back());
    Signature& signature = operation.request.signature;
    signature.reduce_op = how.op;
    signature.prescale = how.prescale;
    signature.postscale = how.postscale;
    if (!in_place) {
      operation.output.reset();
    }
    if (framework != nullptr) {
      operation = tensors.emplace_back(*framework, data.back()).put(std::move(operation));
    }
    operations.push_back(std::move(operation));
  }
  const auto ended = lightcc::testing::run_together(world, std::move(operations));
  EXPECT_TRUE(ended.ok()) << ended.status().message();
  for (std::size_t i = 0; ended.ok() && i < counts.size(); ++i) {
    if (framework != nullptr && in_place) {
      data[i] = tensors[i].read();
    } else if (framework != nullptr) {
      OutputBuffer& output = *(*ended)[i].output;
      EXPECT_EQ(output.size_bytes(), counts[i] * sizeof(float));
      EXPECT_EQ(tensors[i].read(), data[i]) << "an input changed";
      data[i] = tensors[i].read_at(reinterpret_cast<Address>(output.data()), counts[i]);
    }
  }
  return data;
}

class CudaStagedPieces : public ::testing::TestWithParam<bool> {
 protected:
  static JobOptions job() {
    return in_pieces(GetParam() ? on_hosts({0, 0, 1, 1}) : on_one_host(4));
  }
};
INSTANTIATE_TEST_SUITE_P(OneHostAndTwo, CudaStagedPieces, ::testing::Bool());

TEST_P(CudaStagedPieces, give_the_hosts_bits_for_all_sizes) {
  const std::vector<std::vector<std::size_t>> shapes = {
      {0},
      {1},
      {kPiece},
      {kPiece + 1},
      {3 * kPiece},
      {10 * kPiece - 7},
      {1, 0, 5, 9 * kPiece + 3, 2, 0, 17, 1},
      std::vector<std::size_t>(40, 101),
  };
  fake::set("delay_us=100");
  run_gpu_job(job(), [&](World& world, int rank) {
    const Framework framework;
    for (const auto& counts : shapes) {
      const Reduction how{.op = ReduceOp::kSum};
      const auto expected = reduce(world, rank, counts, how, nullptr);
      EXPECT_EQ(reduce(world, rank, counts, how, &framework), expected) << counts.front();
    }
  });
}

TEST_P(CudaStagedPieces, give_the_hosts_bits_for_all_reductions) {
  const std::vector<std::size_t> counts = {kPiece / 2, 3 * kPiece, 11};
  run_gpu_job(job(), [&](World& world, int rank) {
    const Framework framework;
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const Reduction how{.op = op, .prescale = 0.7, .postscale = 1.3};
      for (const bool in_place : {true, false}) {
        const auto expected = reduce(world, rank, counts, how, nullptr);
        EXPECT_EQ(reduce(world, rank, counts, how, &framework, in_place), expected)
            << reduce_op_name(op);
      }
    }
  });
}

TEST_P(CudaStagedPieces, run_on_the_levels_that_the_whole_bucket_would_run_on) {
  for (const std::size_t threshold : {2 * kPieceBytes, 100 * kPieceBytes}) {
    JobOptions options = lightcc::testing::in_blocks(2, job());
    options.environment["LIGHT_HIERARCHICAL_THRESHOLD"] = std::to_string(threshold);
    run_gpu_job(options, [](World& world, int rank) {
      const Framework framework;
      const Reduction how{.op = ReduceOp::kSum};
      const auto expected = reduce(world, rank, {5 * kPiece}, how, nullptr);
      EXPECT_EQ(reduce(world, rank, {5 * kPiece}, how, &framework), expected);
    });
  }
}

TEST_P(CudaStagedPieces, a_rank_that_has_joined_contributes_zeros) {
  run_gpu_job(job(), [](World& world, int rank) {
    const Framework framework;
    if (rank < 3) {
      Numbers data(3 * kPiece + 5, static_cast<float>(rank + 1));
      const Tensor tensor(framework, data);
      Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
      operation.request.signature.reduce_op = ReduceOp::kSum;
      const auto reduced = run_one(world, std::move(operation));
      ASSERT_TRUE(reduced.ok()) << reduced.status().message();
      EXPECT_EQ(tensor.read(), Numbers(data.size(), 6.0F));
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
  });
}

TEST(CudaStagedPiecesOfOneBucket, may_have_parts_on_several_gpus) {
  fake::set("devices=2,delay_us=100");
  run_gpu_job(in_pieces(on_one_host(2)), [](World& world, int rank) {
    const Framework first(0);
    const Framework second(1);
    std::vector<Numbers> data;
    std::vector<Tensor> tensors;
    std::vector<Operation> operations;
    for (const std::size_t count : {kPiece + 1, kPiece / 2, std::size_t{3}, 2 * kPiece}) {
      const std::size_t i = data.size();
      data.emplace_back(count, static_cast<float>(i + 1));
      data.reserve(4);
      // Which GPU has which tensor is not the same on both ranks.
      const bool on_second = (i + static_cast<std::size_t>(rank)) % 2 != 0;
      tensors.reserve(4);
      tensors.emplace_back(on_second ? second : first, data.back());
      operations.push_back(
          tensors.back().put(operation_on(OpType::kAllreduce, std::to_string(i), data.back())));
      operations.back().request.signature.reduce_op = ReduceOp::kSum;
    }
    const auto handle =
        world.start(std::move(operations), {.grouping = Grouping::kNamedMembers, .waits = true});
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    const auto ended = world.wait(*handle, {});
    ASSERT_TRUE(ended.ok()) << ended.status().message();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(tensors[i].read(), Numbers(data[i].size(), 2.0F * static_cast<float>(i + 1))) << i;
    }
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
    Numbers data(kPieces * kPiece, static_cast<float>(rank + 1));
    const Tensor tensor(framework, data);
    EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    if (rank == 1) {
      fake::set("devices=2,hold=0:1");
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
    operation.request.signature.reduce_op = ReduceOp::kSum;
    const auto handle = world.start(lightcc::testing::only(std::move(operation)), {.waits = true});
    ASSERT_TRUE(handle.ok()) << handle.status().message();
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
    const auto ended = world.wait(*handle, {});
    EXPECT_TRUE(ended.ok()) << ended.status().message();
    EXPECT_LE(fake::pinned_growth(), (kPiecesAtATime - 2) * kPieceBytes);
    EXPECT_EQ(tensor.read(), Numbers(data.size(), 3.0F));
  });
}

// ---- Broadcasts.

TEST_P(CudaStagedPieces, bring_the_roots_data_to_all_in_place_and_elsewhere) {
  run_gpu_job(job(), [&](World& world, int rank) {
    const Framework framework;
    for (const std::size_t count : {kPiece + 1, 3 * kPiece, 10 * kPiece - 7}) {
      for (const int root : {0, 2}) {
        for (const bool in_place : {true, false}) {
          Numbers data = rough_numbers(rank, count);
          const Tensor tensor(framework, data);
          Operation operation = tensor.put(operation_on(OpType::kBroadcast, "b", data));
          operation.request.signature.root_or_peer = root;
          if (!in_place) {
            operation.output.reset();
          }
          const auto ended = run_one(world, std::move(operation));
          ASSERT_TRUE(ended.ok()) << ended.status().message();
          EXPECT_EQ(in_place ? tensor.read() : testing::numbers_in(*ended->front().output, &tensor),
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
    Numbers data = rough_numbers(rank, 5 * kPiece);
    const Tensor tensor(framework, data);
    Operation operation = tensor.put(operation_on(OpType::kBroadcast, "b", data));
    operation.request.signature.root_or_peer = 1;
    ASSERT_TRUE(run_one(world, std::move(operation)).ok());
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    EXPECT_EQ(fake::copies_of(0).to_host, 5);
    EXPECT_EQ(fake::copies_of(0).to_device, 3 + 2 * 5);  // The tensors' first numbers, too.
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
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
      Numbers data = rough_numbers(rank, counts[static_cast<std::size_t>(rank)]);
      const Tensor tensor(framework, data);
      Operation operation = tensor.put(operation_on(OpType::kAllgather, "g", data));
      operation.output.reset();
      const auto ended = run_one(world, std::move(operation));
      ASSERT_TRUE(ended.ok()) << ended.status().message();
      EXPECT_EQ(testing::numbers_in(*ended->front().output, &tensor), expected);
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
    Operation operation = result.put(operation_on(OpType::kAllgather, "g", all));
    operation.output = operation.input;
    operation.input.data =
        static_cast<float*>(result.data()) + data.size() * static_cast<std::size_t>(rank);
    operation.input.shape = {static_cast<std::int64_t>(data.size())};
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    if (rank == 0) {
      fake::set("devices=3");
    }
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    const auto ended = run_one(world, std::move(operation));
    ASSERT_TRUE(ended.ok()) << ended.status().message();
    EXPECT_EQ(fake::copies_of(rank).to_host, 13);
    EXPECT_EQ(fake::copies_of(rank).to_device, 2 * 13);
    EXPECT_EQ(result.read(), gathered({data.size(), data.size(), data.size()}));
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    EXPECT_LE(fake::pinned_growth(), 3 * kPiecesAtATime * kPieceBytes);
  });
}

TEST(CudaStagedAllgather, an_output_of_another_shape_fails_on_its_rank_alone) {
  run_gpu_job(in_pieces(on_one_host(2)), [](World& world, int rank) {
    const Framework framework;
    Numbers data = rough_numbers(rank, 3 * kPiece);
    Numbers all(6 * kPiece - (rank == 0 ? 1 : 0), 0.0F);
    const Tensor tensor(framework, data);
    const Tensor result(framework, all);
    Operation operation = tensor.put(operation_on(OpType::kAllgather, "g", data));
    operation.output = result.put(operation_on(OpType::kAllgather, "g", all)).input;
    const auto ended = run_one(world, std::move(operation));
    EXPECT_EQ(ended.ok(), rank == 1) << ended.status().message();
    EXPECT_EQ(result.read(), rank == 1 ? gathered({3 * kPiece, 3 * kPiece}) : all);
  });
}

// ---- Many small tensors.

/// What the fake driver was asked for by an all-reduce of `counts`, on a rank alone.
struct Calls {
  fake::Copies copies;
  int launches = 0;
};
Calls calls_of(const std::vector<std::size_t>& counts, const std::string& settings = "") {
  Calls calls;
  run_gpu_job(on_one_host(1), [&](World& world, int rank) {
    const Framework framework;
    const auto expected = reduce(world, rank, counts, {.postscale = 0.5}, nullptr);
    std::vector<Numbers> data;
    std::vector<Tensor> tensors;
    std::vector<Operation> operations;
    data.reserve(counts.size());
    tensors.reserve(counts.size());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      data.push_back(rough_numbers(rank + static_cast<int>(i), counts[i]));
      Operation operation = operation_on(OpType::kAllreduce, "t" + std::to_string(i), data[i]);
      operation.request.signature.reduce_op = ReduceOp::kSum;
      operation.request.signature.postscale = 0.5;
      operations.push_back(tensors.emplace_back(framework, data[i]).put(std::move(operation)));
    }
    fake::set(settings);
    const auto handle =
        world.start(std::move(operations), {.grouping = Grouping::kNamedMembers, .waits = true});
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    ASSERT_TRUE(world.wait(*handle, {}).ok());
    calls = {.copies = fake::copies_of(0), .launches = fake::launches()};
    for (std::size_t i = 0; i < counts.size(); ++i) {
      EXPECT_EQ(tensors[i].read(), expected[i]) << i;
    }
  });
  return calls;
}

TEST(CudaStagedManyTensors, go_to_the_host_and_back_in_one_copy_each) {
  const Calls calls = calls_of(std::vector<std::size_t>(100, 101));
  EXPECT_EQ(calls.copies.to_host, 1);
  EXPECT_EQ(calls.copies.to_device, 1);
  EXPECT_EQ(calls.launches, 2);
}

TEST(CudaStagedManyTensors, are_packed_between_large_ones) {
  std::vector<std::size_t> counts(300, 17);
  counts[150] = 200000;
  const Calls calls = calls_of(counts);
  // 150 tensors, the large one, then 149. A launch takes 127 of them, with the gaps between.
  EXPECT_EQ(calls.copies.to_host, 3);
  EXPECT_EQ(calls.copies.to_device, 3);
  EXPECT_EQ(calls.launches, 8);
}

TEST(CudaStagedManyTensors, are_copied_one_by_one_where_they_are_few) {
  const Calls calls = calls_of({5, 101, 7});
  EXPECT_EQ(calls.copies.to_host, 3);
  EXPECT_EQ(calls.copies.to_device, 3);
  EXPECT_EQ(calls.launches, 0);
}

TEST(CudaStagedManyTensors, are_copied_one_by_one_where_the_gpu_has_no_memory_left) {
  const Calls calls = calls_of(std::vector<std::size_t>(10, 101), "fail=cuMemAllocAsync:2:1");
  EXPECT_EQ(calls.copies.to_host, 10);
  EXPECT_EQ(calls.copies.to_device, 1);  // By then there is some again.
  EXPECT_EQ(calls.launches, 1);
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
      Numbers none;
      Operation operation =
          tensor.put(operation_on(OpType::kAllreduce, "t" + std::to_string(i), none));
      operation.request.signature.reduce_op = ReduceOp::kSum;
      operation.input.dtype = DataType::kUint8;
      operation.input.shape = {static_cast<std::int64_t>(count)};
      operation.input.data = static_cast<std::uint8_t*>(tensor.data()) + i * kStride;
      operation.output = operation.input;
      operations.push_back(std::move(operation));
      for (std::size_t k = 0; k < count; ++k) {
        bytes[i * kStride + k] = static_cast<std::uint8_t>(2 * bytes[i * kStride + k]);
      }
    }
    const auto handle =
        world.start(std::move(operations), {.grouping = Grouping::kNamedMembers, .waits = true});
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    ASSERT_TRUE(world.wait(*handle, {}).ok());
    const Numbers got = tensor.read();
    EXPECT_EQ(std::memcmp(got.data(), bytes.data(), bytes.size()), 0);
    EXPECT_GT(fake::launches(), 0);
  });
}

/// The errors of both ranks, when the second rank's call fails in the middle of a bucket.
std::vector<Status> failures_with(const std::string& failure) {
  Mutex mutex;
  std::vector<Status> failures;
  run_gpu_job(in_pieces(on_one_host(2)), [&](World& world, int rank) {
    const Framework framework;
    Numbers data(10 * kPiece);
    const Tensor tensor(framework, data);
    EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    if (rank == 1) {
      fake::set(failure);
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    const auto ended = run_one(world, tensor.put(operation_on(OpType::kAllreduce, "t", data)));
    const MutexLock lock(mutex);
    failures.push_back(ended.status());
  });
  return failures;
}

TEST(CudaStagedPiecesFailures, end_the_world_with_the_call_wherever_they_come) {
  for (const char* const call :
       {"cuMemHostAlloc", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"}) {
    for (const int turn : {1, 2, 5, 8}) {
      for (const int code : {2, 700}) {
        const auto failures = failures_with(std::string("fail=") + call + ":" +
                                            std::to_string(code) + ":" + std::to_string(turn));
        const std::string name = std::string(call).substr(0, std::string(call).find('_'));
        const std::string expected = code == 2 ? name + ": CUDA_ERROR_OUT_OF_MEMORY"
                                               : std::string(": CUDA_ERROR_ILLEGAL_ADDRESS");
        ASSERT_EQ(failures.size(), 2U);
        for (const Status& failure : failures) {
          EXPECT_NE(failure.message().find(expected), std::string::npos)
              << call << ", " << turn << ": " << failure.message();
        }
      }
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_staged_pieces_test
