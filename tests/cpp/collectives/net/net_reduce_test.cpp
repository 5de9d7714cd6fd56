// All-reduce and reduce-scatter over loopback: exact results, the same bits everywhere.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/net/net_group.hpp"

#include "collectives/net/net_world.hpp"
#include "doubles/fault_plan.hpp"
#include "doubles/threads.hpp"

namespace lightcc::net_test::net_reduce_test {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

/// Small enough that sums and products of 17 are exact in all types.
unsigned input_of(int member, std::size_t index, ReduceOp op) {
  const auto mixed =
      static_cast<unsigned>(index * 7 + static_cast<unsigned>(member) * 3 + index / 5);
  return op == ReduceOp::kProduct ? 1 + (member < 6 ? mixed % 2 : 0) : mixed % 7;
}

unsigned expected_of(int members, std::size_t index, DataType dtype, ReduceOp op) {
  const auto value = [&](int member) {
    const unsigned input = input_of(member, index, op);
    return dtype == DataType::kBool ? std::min(input, 1U) : input;
  };
  unsigned result = value(0);
  for (int member = 1; member < members; ++member) {
    const unsigned next = value(member);
    switch (op) {
      case ReduceOp::kMin:
        result = std::min(result, next);
        break;
      case ReduceOp::kMax:
        result = std::max(result, next);
        break;
      case ReduceOp::kProduct:
        result *= next;
        break;
      default:
        result += next;
        break;
    }
  }
  return result;
}

/// One member's tensors, each in memory of its own, with distinct input and output when asked.
struct Tensors {
  Tensors(int member,
          const std::vector<std::size_t>& counts,
          DataType dtype,
          ReduceOp op,
          bool in_place) {
    const std::size_t element = element_size(dtype);
    std::size_t index = 0;
    for (const std::size_t count : counts) {
      // A guard element on both sides shows writes outside.
      auto& in = inputs.emplace_back((count + 2) * element, std::byte{0x5a});
      for (std::size_t i = 0; i < count; ++i) {
        put_number(in.data() + element, dtype, i, input_of(member, index++, op));
      }
      if (!in_place) {
        outputs.emplace_back((count + 2) * element, std::byte{0x5a});
      }
    }
    for (std::size_t i = 0; i < counts.size(); ++i) {
      std::byte* const in = inputs[i].data() + element;
      spans.push_back(
          {.in = in, .out = in_place ? in : outputs[i].data() + element, .count = counts[i]});
    }
  }

  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::vector<std::byte>> outputs;
  std::vector<TensorSpan> spans;
};

void expect_results(Tensors& tensors,
                    int members,
                    DataType dtype,
                    ReduceOp op,
                    bool in_place,
                    const std::string& what) {
  const std::size_t element = element_size(dtype);
  auto& buffers = in_place ? tensors.inputs : tensors.outputs;
  std::size_t index = 0;
  for (std::size_t t = 0; t < buffers.size(); ++t) {
    std::vector<std::byte> wanted(buffers[t].size(), std::byte{0x5a});
    for (std::size_t i = 0; i < tensors.spans[t].count; ++i) {
      put_number(wanted.data() + element, dtype, i, expected_of(members, index++, dtype, op));
    }
    ASSERT_TRUE(buffers[t] == wanted) << what << ", tensor " << t;
  }
}

void check_allreduce(NetWorld& world,
                     const std::vector<std::size_t>& counts,
                     DataType dtype,
                     ReduceOp op,
                     bool in_place,
                     const std::string& what) {
  std::vector<Tensors> all;
  for (int i = 0; i < world.size(); ++i) {
    all.emplace_back(i, counts, dtype, op, in_place);
  }
  const Reduction reduction{.dtype = dtype, .op = op};
  world.run_ok(
      [&](int member) {
        return world.group(member).allreduce(all[static_cast<std::size_t>(member)].spans,
                                             reduction);
      },
      what);
  for (Tensors& tensors : all) {
    expect_results(tensors, world.size(), dtype, op, in_place, what);
  }
}

std::string describe(int size, std::size_t count, std::uint64_t seed) {
  return std::to_string(size) + " members, " + std::to_string(count) + " elements, seed " +
         std::to_string(seed);
}

TEST(NetAllreduce, counts_around_the_seams_give_exact_sums) {
  // 256-byte messages and an input above the flood limit need many chunks; below it, one hop.
  constexpr std::size_t kChunk = 256 / 4;
  for (const int size : kWorldSizes) {
    const auto n = static_cast<std::size_t>(size);
    const std::uint64_t seed = 100 + n;
    NetWorld world(
        size, FaultPlan(seed).delay(2).fragment(192).capacity(1024), {.chunk_bytes = 256});
    for (const std::size_t count : {std::size_t{0},
                                    std::size_t{1},
                                    n - 1,
                                    n,
                                    n + 1,
                                    kChunk - 1,
                                    kChunk,
                                    kChunk + 1,
                                    n * kChunk - 1,
                                    n * kChunk,
                                    n * kChunk + 1,
                                    std::size_t{4097},
                                    5 * n * kChunk + 4999}) {
      check_allreduce(
          world, {count}, DataType::kFloat32, ReduceOp::kSum, true, describe(size, count, seed));
    }
  }
}

TEST(NetAllreduce, every_type_and_operator_is_exact_and_equal_on_all_members) {
  for (const int size : kWorldSizes) {
    NetWorld world(size, FaultPlan(9), {.chunk_bytes = 1024});
    for (std::uint8_t type = 0; type < kDataTypeCount; ++type) {
      const auto dtype = static_cast<DataType>(type);
      // One below and one above the limit of the one-hop algorithm.
      for (const std::size_t bytes : {std::size_t{200}, std::size_t{17000}}) {
        for (const ReduceOp op : kOps) {
          if (is_reducible(dtype, op)) {
            check_allreduce(world,
                            {bytes / element_size(dtype)},
                            dtype,
                            op,
                            bytes == 200,
                            std::string(data_type_name(dtype)) + " " + reduce_op_name(op) + " " +
                                describe(size, bytes, 9));
          }
        }
      }
    }
  }
}

TEST(NetAllreduce, buckets_of_many_tensors_work_in_place_and_not) {
  for (const int size : kWorldSizes) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      std::mt19937_64 random(seed);
      std::vector<std::size_t> counts;
      for (int i = 0; i < 40; ++i) {
        counts.push_back(random() % 5 == 0 ? 0 : random() % (random() % 7 == 0 ? 3000 : 90));
      }
      NetWorld world(
          size, FaultPlan(seed).delay(3).fragment(640).capacity(2000), {.chunk_bytes = 512});
      check_allreduce(
          world, counts, DataType::kInt32, ReduceOp::kSum, seed % 2 == 0, describe(size, 0, seed));
      counts.resize(3);
      check_allreduce(world,
                      counts,
                      DataType::kFloat16,
                      ReduceOp::kSum,
                      seed % 2 == 1,
                      describe(size, 0, seed));
    }
  }
}

TEST(NetAllreduce, one_link_buffer_of_64_bytes_does_not_lock_it) {
  for (const int size : {2, 3, 8, 17}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      NetWorld world(size, FaultPlan(seed).capacity(64), {.chunk_bytes = 128});
      check_allreduce(world,
                      {700, 1, 5000},
                      DataType::kUint8,
                      ReduceOp::kMax,
                      true,
                      describe(size, 5701, seed));
      check_allreduce(
          world, {20000}, DataType::kUint8, ReduceOp::kMax, true, describe(size, 20000, seed));
    }
  }
}

TEST(NetAllreduce, operations_follow_each_other_without_waiting_for_slow_members) {
  // Works of different members overlap: nobody waits for the others between operations.
  constexpr int kRounds = 6;
  for (const int size : {2, 5, 17}) {
    NetWorld world(size, FaultPlan(21).delay(4).capacity(4096), {.chunk_bytes = 512});
    const std::vector<std::size_t> counts{300, 6000};
    std::vector<std::vector<Tensors>> all(static_cast<std::size_t>(size));
    std::vector<int> round(static_cast<std::size_t>(size));
    std::vector<std::unique_ptr<Work>> works(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) {
      for (int k = 0; k < kRounds; ++k) {
        all[static_cast<std::size_t>(i)].emplace_back(
            i, counts, DataType::kInt32, ReduceOp::kSum, true);
      }
    }
    std::size_t finished = 0;
    for (int turn = 0; turn < 5000000 && finished < works.size(); ++turn) {
      const auto i = static_cast<std::size_t>(world.random() % works.size());
      ASSERT_TRUE(world.transports[i]->poll().ok());
      if (round[i] == kRounds) {
        continue;
      }
      if (works[i] == nullptr) {
        works[i] = world.groups[i]->allreduce(all[i][static_cast<std::size_t>(round[i])].spans,
                                              {.dtype = DataType::kInt32});
      }
      const auto progress = works[i]->advance();
      ASSERT_TRUE(progress.ok()) << progress.status().message();
      if (progress.value() == Progress::kDone) {
        works[i].reset();
        finished += ++round[i] == kRounds ? 1U : 0U;
      }
    }
    ASSERT_EQ(finished, works.size());
    for (auto& rounds : all) {
      for (Tensors& tensors : rounds) {
        expect_results(tensors, size, DataType::kInt32, ReduceOp::kSum, true, "in a row");
      }
    }
  }
}

std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::uniform_real_distribution<float>(-1e3F, 1e3F)(random);
  }
  return values;
}

std::byte* raw(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values)).data();
}

/// The sum of `inputs` in the order of levels of these widths.
template <typename Number>
std::vector<Number> sum_in_levels(std::vector<std::vector<Number>> inputs,
                                  const std::vector<std::size_t>& widths,
                                  std::size_t count,
                                  Reduction reduction) {
  const double postscale = reduction.postscale;
  for (const std::size_t width : widths) {
    std::vector<std::vector<Number>> sums;
    const bool last = inputs.size() <= width;
    for (std::size_t first = 0; first < inputs.size(); first += width) {
      std::vector<ReduceSource> row;
      for (std::size_t i = first; i < std::min(first + width, inputs.size()); ++i) {
        row.push_back({.data = std::as_bytes(std::span(inputs[i])).data()});
      }
      auto& sum = sums.emplace_back(count);
      reduction.postscale = last ? postscale : 1.0;
      reduce(row,
             std::as_writable_bytes(std::span(sum)).data(),
             nullptr,
             count,
             reduction,
             SimdLevel::kPlain);
    }
    reduction.prescale = 1.0;
    inputs = std::move(sums);
  }
  return inputs.front();
}

/// The same in the order of the tiers of members with these paths.
template <typename Number>
std::vector<Number> sum_in_tiers(std::vector<std::vector<Number>> inputs,
                                 const std::vector<std::string>& paths,
                                 std::size_t count,
                                 Reduction reduction) {
  const double postscale = reduction.postscale;
  for (const GridTier& tier : grid_tiers(paths)) {
    std::vector<std::vector<Number>> sums;
    reduction.postscale = tier.switches.size() == 1 ? postscale : 1.0;
    for (const std::vector<std::size_t>& members : tier.switches) {
      std::vector<std::vector<Number>> within;
      for (const std::size_t member : members) {
        within.push_back(inputs[member]);
      }
      sums.push_back(sum_in_levels(within, tier.widths, count, reduction));
    }
    reduction.prescale = 1.0;
    inputs = std::move(sums);
  }
  return inputs.front();
}

/// Cuts `inputs` and messages in several ways, and expects the same bits of all.
template <typename Number>
void check_bits(const std::vector<std::vector<Number>>& inputs,
                const Reduction& reduction,
                const std::vector<std::string>& paths) {
  const std::size_t size = inputs.size();
  const std::size_t count = inputs.front().size();
  const auto wanted = sum_in_tiers(inputs, paths, count, reduction);
  for (const std::size_t chunk : {64U, 1024U, 100000U}) {
    // Whole, on narrow levels or on wide ones, and so small that the one-hop algorithm takes it.
    for (const std::size_t tensor : {count, std::size_t{1000}}) {
      NetWorld world(static_cast<int>(size),
                     FaultPlan(chunk).fragment(320),
                     {.chunk_bytes = chunk,
                      .level_chunk_bytes = 10 * chunk,
                      .narrow_bytes = chunk == 1024 ? kNarrowBytes : 4096},
                     0,
                     paths);
      auto data = inputs;
      for (std::size_t first = 0; first < count; first += tensor) {
        const std::size_t part = std::min(tensor, count - first);
        world.run_ok(
            [&](int member) {
              auto& own = data[static_cast<std::size_t>(member)];
              const auto at = std::as_writable_bytes(std::span(own).subspan(first)).data();
              return world.group(member).allreduce({{.in = at, .out = at, .count = part}},
                                                   reduction);
            },
            "chunk " + std::to_string(chunk));
      }
      for (const auto& result : data) {
        ASSERT_EQ(std::memcmp(result.data(), wanted.data(), sizeof(Number) * count), 0)
            << size << " members, chunk " << chunk << ", tensor " << tensor;
      }
    }
  }
}

TEST(NetAllreduce, bits_do_not_depend_on_chunks_tensors_or_algorithm) {
  for (const std::size_t size : {2U, 3U, 5U, 8U, 16U, 17U, 24U, 32U}) {
    std::vector<std::vector<float>> inputs;
    std::vector<std::vector<std::uint16_t>> halves;
    for (std::size_t i = 0; i < size; ++i) {
      inputs.push_back(random_floats(9001, i));
      auto& half = halves.emplace_back();
      for (std::size_t k = 0; k < 6001; ++k) {  // Both signs, up to about 16.
        half.push_back(
            static_cast<std::uint16_t>((i * 7919 + k * 104729) % 0x4c00 | (k % 2) << 15));
      }
    }
    const std::vector<std::string> nobody_told(size);
    for (const auto& paths : {nobody_told, racks_of(static_cast<int>(size))}) {
      check_bits(inputs, {.dtype = DataType::kFloat32, .prescale = 0.3, .postscale = 1.7}, paths);
      check_bits(halves, {.dtype = DataType::kFloat16, .prescale = 0.5}, paths);
    }
  }
}

TEST(NetAllreduce, factors_are_applied_once_to_each_contribution_and_to_the_result) {
  for (const int size : kWorldSizes) {
    for (const std::size_t count : {std::size_t{50}, std::size_t{9000}}) {
      NetWorld world(size, FaultPlan(2), {.chunk_bytes = 1024});
      std::vector<std::vector<float>> data(static_cast<std::size_t>(size),
                                           std::vector<float>(count, 3.0F));
      world.run_ok(
          [&](int member) {
            std::byte* const at = raw(data[static_cast<std::size_t>(member)]);
            return world.group(member).allreduce({{.in = at, .out = at, .count = count}},
                                                 {.dtype = DataType::kFloat32,
                                                  .op = ReduceOp::kSum,
                                                  .prescale = 0.5,
                                                  .postscale = 4});
          },
          "factors");
      for (const auto& result : data) {
        EXPECT_EQ(result, std::vector<float>(count, 6.0F * static_cast<float>(size)));
      }
    }
  }
}

TEST(NetAllreduce, a_joined_member_contributes_zeros_and_wants_nothing) {
  for (const int size : {2, 3, 5, 17}) {
    for (int joined = 0; joined < size; joined += 2) {
      for (const std::size_t count : {std::size_t{10}, std::size_t{8000}}) {
        NetWorld world(size, FaultPlan(4).fragment(500), {.chunk_bytes = 512});
        std::vector<std::vector<float>> data(static_cast<std::size_t>(size),
                                             std::vector<float>(2 * count, 2.0F));
        world.run_ok(
            [&](int member) {
              auto& own = data[static_cast<std::size_t>(member)];
              std::byte* const at = raw(own);
              const bool here = member != joined;
              // Only the second tensor's result is wanted by member 1.
              return world.group(member).allreduce(
                  {{.in = here ? at : nullptr,
                    .out = here && member != 1 ? at : nullptr,
                    .count = count},
                   {.in = here ? at + 4 * count : nullptr,
                    .out = here ? at + 4 * count : nullptr,
                    .count = count}},
                  {.dtype = DataType::kFloat32, .op = ReduceOp::kSum});
            },
            "joined " + std::to_string(joined));
        const auto sum = static_cast<float>(2 * (size - 1));
        for (int member = 0; member < size; ++member) {
          std::vector<float> wanted(2 * count, member == joined ? 2.0F : sum);
          if (member == 1) {
            std::fill_n(wanted.begin(), count, 2.0F);
          }
          ASSERT_EQ(data[static_cast<std::size_t>(member)], wanted) << size << " " << member;
        }
      }
    }
  }
}

TEST(NetAllreduce, members_may_be_threads) {
  constexpr int kMembers = 4;
  NetWorld world(kMembers, FaultPlan(31).delay(2).fragment(512), {.chunk_bytes = 1024});
  std::vector<Tensors> all;
  for (int i = 0; i < kMembers; ++i) {
    all.emplace_back(
        i, std::vector<std::size_t>{5000, 7, 3000}, DataType::kInt32, ReduceOp::kSum, true);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto drive = [&](std::size_t i) {
    const auto work = world.groups[i]->allreduce(all[i].spans, {.dtype = DataType::kInt32});
    while (std::chrono::steady_clock::now() < deadline) {
      ASSERT_TRUE(world.transports[i]->poll().ok());
      const auto progress = work->advance();
      ASSERT_TRUE(progress.ok()) << progress.status().message();
      if (progress.value() == Progress::kDone) {
        return;
      }
      if (progress.value() == Progress::kIdle) {
        std::this_thread::yield();
      }
    }
    ADD_FAILURE() << "not done within a minute";
  };
  run_on_threads(std::size_t{kMembers}, drive);
  for (Tensors& tensors : all) {
    expect_results(tensors, kMembers, DataType::kInt32, ReduceOp::kSum, true, "threads");
  }
}

TEST(NetAllreduce, an_operator_without_meaning_is_refused_and_the_group_goes_on) {
  NetWorld world(1);
  float value = 1.0F;
  const TensorSpan span{.in = std::as_bytes(std::span(&value, 1)).data(),
                        .out = std::as_writable_bytes(std::span(&value, 1)).data(),
                        .count = 1};
  for (const Reduction& reduction :
       {Reduction{.dtype = DataType::kBool, .op = ReduceOp::kSum},
        Reduction{.dtype = DataType::kFloat32, .op = ReduceOp::kAverage},
        Reduction{.dtype = DataType::kFloat32, .op = ReduceOp::kAdasum}}) {
    EXPECT_EQ(
        world.run([&](int member) { return world.group(member).allreduce({span}, reduction); })[0]
            .code(),
        ErrorCode::kInvalidArgument);
  }
  check_allreduce(world, {3}, DataType::kInt64, ReduceOp::kSum, true, "after a refusal");
}

void check_reduce_scatter(NetWorld& world,
                          const std::vector<std::size_t>& counts,
                          DataType dtype,
                          const std::string& what) {
  const std::size_t element = element_size(dtype);
  std::size_t total = 0;
  for (const std::size_t count : counts) {
    total += count;
  }
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::vector<std::byte>> outputs;
  for (int member = 0; member < world.size(); ++member) {
    auto& input = inputs.emplace_back(total * element);
    for (std::size_t i = 0; i < total; ++i) {
      put_number(input.data(), dtype, i, input_of(member, i, ReduceOp::kSum));
    }
    outputs.emplace_back((counts[static_cast<std::size_t>(member)] + 1) * element, std::byte{0x5a});
  }
  const auto original = inputs;
  world.run_ok(
      [&](int member) {
        const auto i = static_cast<std::size_t>(member);
        return world.group(member).reduce_scatter(
            inputs[i].data(), outputs[i].data(), counts, {.dtype = dtype, .op = ReduceOp::kSum});
      },
      what);
  std::size_t first = 0;
  for (std::size_t member = 0; member < counts.size(); ++member) {
    std::vector<std::byte> wanted(outputs[member].size(), std::byte{0x5a});
    for (std::size_t i = 0; i < counts[member]; ++i) {
      put_number(
          wanted.data(), dtype, i, expected_of(world.size(), first + i, dtype, ReduceOp::kSum));
    }
    ASSERT_EQ(outputs[member], wanted) << what << ", member " << member;
    first += counts[member];
  }
  EXPECT_EQ(inputs, original) << what << ": inputs are read only";
}

TEST(NetReduceScatter, uneven_counts_with_zeros_give_exact_shares) {
  for (const int size : kWorldSizes) {
    const auto n = static_cast<std::size_t>(size);
    const std::uint64_t seed = 40 + n;
    NetWorld world(
        size, FaultPlan(seed).delay(2).fragment(300).capacity(700), {.chunk_bytes = 256});
    std::mt19937_64 random(seed);
    for (int round = 0; round < 4; ++round) {
      std::vector<std::size_t> counts(n);
      for (std::size_t& count : counts) {
        count = random() % 3 == 0 ? 0 : random() % (round == 0 ? 3 : 1500);
      }
      const auto dtype = static_cast<DataType>(round == 0 ? 1 : 4 + round);
      check_reduce_scatter(world, counts, dtype, describe(size, 0, seed));
    }
    check_reduce_scatter(world, std::vector<std::size_t>(n, 0), DataType::kInt32, "nothing");
    check_reduce_scatter(world, std::vector<std::size_t>(n, 64), DataType::kInt32, "even");
  }
}

TEST(NetReduceScatter, null_input_is_zeros_and_null_output_is_dropped) {
  for (const int size : {2, 4, 17}) {
    NetWorld world(size, FaultPlan(6), {.chunk_bytes = 256});
    const std::vector<std::size_t> counts(static_cast<std::size_t>(size), 300);
    std::vector<float> input(300 * static_cast<std::size_t>(size), 1.0F);
    std::vector<std::vector<float>> outputs(static_cast<std::size_t>(size),
                                            std::vector<float>(300));
    world.run_ok(
        [&](int member) {
          return world.group(member).reduce_scatter(
              member == 1 ? nullptr : raw(input),
              member == 1 ? nullptr : raw(outputs[static_cast<std::size_t>(member)]),
              counts,
              {.dtype = DataType::kFloat32, .op = ReduceOp::kSum});
        },
        "joined");
    for (int member = 0; member < size; ++member) {
      const auto sum = static_cast<float>(member == 1 ? 0 : size - 1);
      EXPECT_EQ(outputs[static_cast<std::size_t>(member)], std::vector<float>(300, sum));
    }
  }
}

}  // namespace
}  // namespace lightcc::net_test::net_reduce_test
