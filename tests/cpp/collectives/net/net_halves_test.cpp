// The two halves of an all-reduce over loopback, straight from and to the tensors of a bucket.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

#include "collectives/net/net_world.hpp"
#include "doubles/fault_plan.hpp"

namespace lightcc::net_test::net_halves_test {
namespace {

using Numbers = std::vector<float>;

/// Whole numbers, so that sums are exact in any order.
Numbers numbers_of(int member, std::size_t count) {
  Numbers numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<float>((i * 7 + i / 3) % 101) + static_cast<float>(member);
  }
  return numbers;
}

Numbers sum_of(int size, std::size_t count) {
  Numbers sum(count, 0.0F);
  for (int member = 0; member < size; ++member) {
    const Numbers numbers = numbers_of(member, count);
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] += numbers[i];
    }
  }
  return sum;
}

/// Parts of any size, some empty.
std::vector<std::size_t> parts_of(int size, std::size_t count) {
  std::vector<std::size_t> parts(static_cast<std::size_t>(size), 0);
  for (std::size_t i = 0; i < count; ++i) {
    ++parts[(i / 7) % parts.size()];
  }
  return parts;
}

std::byte* at(Numbers& numbers, std::size_t index) {
  return reinterpret_cast<std::byte*>(numbers.data() + index);
}

/// They have other sizes than the parts, and one is empty. They lie in place, or apart in memory.
std::vector<TensorSpan> tensors_of(Numbers& front, Numbers& back) {
  return {{.in = at(front, 0), .out = at(front, 0), .count = front.size()},
          {.in = at(front, 0), .out = at(front, 0), .count = 0},
          {.in = at(back, 0), .out = at(back, 0), .count = back.size()}};
}

TEST(NetHalves, of_an_allreduce_together_give_the_sum_in_the_tensors) {
  const NetGroupOptions options{
      .chunk_bytes = 4096, .level_chunk_bytes = 30000, .narrow_bytes = 20000};
  for (const auto& [size, paths] : std::vector<std::pair<int, std::vector<std::string>>>{
           {1, {}}, {2, {}}, {3, {}}, {5, {}}, {17, {}}, {5, racks_of(5)}, {17, racks_of(17)}}) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{5003}}) {
      const FaultPlan plan = FaultPlan(count + 1).fragment(300).capacity(2048);
      NetWorld world(size, plan, options, 0, paths);
      const auto parts = parts_of(size, count);
      std::vector<Numbers> fronts;
      std::vector<Numbers> backs;
      for (int member = 0; member < size; ++member) {
        const Numbers all = numbers_of(member, count);
        const auto cut = all.begin() + static_cast<std::ptrdiff_t>(count / 3);
        fronts.emplace_back(all.begin(), cut);
        backs.emplace_back(cut, all.end());
      }
      const std::string what =
          std::to_string(size) + " members, " + std::to_string(count) + " elements";
      const auto tensors = [&](int member) {
        const auto index = static_cast<std::size_t>(member);
        return tensors_of(fronts[index], backs[index]);
      };
      const auto whole = [&](int member) {
        Numbers all = fronts[static_cast<std::size_t>(member)];
        const Numbers& back = backs[static_cast<std::size_t>(member)];
        all.insert(all.end(), back.begin(), back.end());
        return all;
      };
      world.run_ok(
          [&](int member) {
            return world.group(member).reduce_scatter_bucket(tensors(member), parts, {});
          },
          what);
      const Numbers sum = sum_of(size, count);
      for (int member = 0; member < size; ++member) {
        const Numbers before = numbers_of(member, count);
        const Numbers now = whole(member);
        std::size_t element = 0;
        for (std::size_t owner = 0; owner < parts.size(); ++owner) {
          const Numbers& right = owner == static_cast<std::size_t>(member) ? sum : before;
          for (std::size_t i = 0; i < parts[owner]; ++i, ++element) {
            ASSERT_EQ(now[element], right[element]) << what << ", element " << element;
          }
        }
      }
      world.run_ok(
          [&](int member) {
            return world.group(member).allgather_bucket(tensors(member), parts, DataType::kFloat32);
          },
          what);
      for (int member = 0; member < size; ++member) {
        ASSERT_EQ(whole(member), sum) << what << ", member " << member;
      }
    }
  }
}

TEST(NetHalves, gather_many_tensors_apart_in_memory_and_leave_alone_what_is_not_wanted) {
  for (const int size : {1, 2, 3, 8, 17, 18}) {
    NetWorld world(size, FaultPlan(static_cast<unsigned>(size)).delay(3).fragment(300));
    // Some are so large that they share no message, some are empty.
    std::vector<std::size_t> counts;
    std::size_t total = 0;
    for (std::size_t i = 0; i < 400; ++i) {
      counts.push_back(i % 9 == 0 ? 700 : i % 7 * 20);
      total += counts.back();
    }
    const auto parts = parts_of(size, total);
    const Numbers wanted = numbers_of(0, total);
    std::vector<std::vector<Numbers>> ins(static_cast<std::size_t>(size));
    auto outs = ins;
    std::vector<std::vector<TensorSpan>> tensors(ins.size());
    for (std::size_t member = 0; member < ins.size(); ++member) {
      std::size_t first = 0;
      for (std::size_t i = 0; i < counts.size(); first += counts[i++]) {
        const auto begin = wanted.begin() + static_cast<std::ptrdiff_t>(first);
        ins[member].emplace_back(begin, begin + static_cast<std::ptrdiff_t>(counts[i]));
        outs[member].emplace_back(counts[i], -1.0F);
        const bool is_wanted = i % 11 != member % 11;
        tensors[member].push_back({.in = at(ins[member][i], 0),
                                   .out = is_wanted ? at(outs[member][i], 0) : nullptr,
                                   .count = counts[i]});
      }
    }
    world.run_ok(
        [&](int member) {
          return world.group(member).allgather_bucket(
              tensors[static_cast<std::size_t>(member)], parts, DataType::kFloat32);
        },
        std::to_string(size) + " members");
    for (std::size_t member = 0; member < ins.size(); ++member) {
      for (std::size_t i = 0; i < counts.size(); ++i) {
        const Numbers left_alone(counts[i], -1.0F);
        ASSERT_EQ(outs[member][i], i % 11 != member % 11 ? ins[member][i] : left_alone)
            << size << " members, member " << member << ", tensor " << i;
      }
    }
  }
}

TEST(NetHalves, refuse_parts_that_are_not_the_tensors) {
  NetWorld world(1);
  Numbers data(10, 1.0F);
  const TensorSpan tensor{.in = at(data, 0), .out = at(data, 0), .count = 10};
  for (const std::vector<std::size_t>& parts :
       {std::vector<std::size_t>{9}, {10, 0}, {}, {SIZE_MAX}}) {
    EXPECT_EQ(
        world.run([&](int) { return world.group(0).reduce_scatter_bucket({tensor}, parts, {}); })
            .front()
            .code(),
        ErrorCode::kInvalidArgument);
    EXPECT_EQ(world
                  .run([&](int) {
                    return world.group(0).allgather_bucket({tensor}, parts, DataType::kFloat32);
                  })
                  .front()
                  .code(),
              ErrorCode::kInvalidArgument);
  }
  world.run_ok(
      [&](int) { return world.group(0).allgather_bucket({tensor}, {10}, DataType::kFloat32); },
      "the group goes on");
}

}  // namespace
}  // namespace lightcc::net_test::net_halves_test
