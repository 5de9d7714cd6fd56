// The two halves of an all-reduce over loopback, straight from and to the tensors of a bucket.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
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
  for (const int size : {1, 2, 3, 5, 17}) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{5003}}) {
      NetWorld world(size, FaultPlan(count + 1).fragment(300).capacity(2048));
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

TEST(NetHalves, leave_alone_what_a_member_does_not_want) {
  NetWorld world(2);
  std::vector<Numbers> own = {Numbers(50, 1.0F), Numbers(50, 2.0F)};
  std::vector<Numbers> out(2, Numbers(100, 9.0F));
  world.run_ok(
      [&](int member) {
        const auto index = static_cast<std::size_t>(member);
        std::vector<TensorSpan> tensors(2, TensorSpan{.count = 50});
        tensors[index].in = at(own[index], 0);
        tensors[1].out = at(out[index], 50);
        return world.group(member).allgather_bucket(tensors, {50, 50}, DataType::kFloat32);
      },
      "the first part is not wanted");
  for (const Numbers& result : out) {
    EXPECT_EQ(Numbers(result.begin(), result.begin() + 50), Numbers(50, 9.0F));
    EXPECT_EQ(Numbers(result.begin() + 50, result.end()), Numbers(50, 2.0F));
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
