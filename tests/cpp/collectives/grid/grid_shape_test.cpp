// Levels for every number of members, without any I/O: who owns what, in which order contributions
// meet, how many bytes and messages that takes.
#include "lightcc/collectives/grid/grid_shape.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::grid_shape_test {
namespace {

/// Every number up to 512, and some of those up to 10,000.
std::vector<std::size_t> numbers_of_members() {
  std::vector<std::size_t> numbers(512);
  std::iota(numbers.begin(), numbers.end(), std::size_t{1});
  for (std::size_t members = 513; members <= 10000; members += 271) {
    numbers.push_back(members);
  }
  numbers.insert(numbers.end(), {1009, 1024, 4096, 9973, 10000});
  return numbers;
}

using Members = std::vector<std::size_t>;

/// Contributions of neighbours, combined in member order.
struct Sum {
  std::size_t first = 0;
  std::size_t count = 0;
  bool operator==(const Sum&) const = default;
};

/// What an all-reduce of one unit of data does, by member.
struct Played {
  std::vector<Sum> combined;       ///< What all own shares hold in the end.
  std::vector<double> sent;        ///< Units of data.
  std::vector<std::size_t> peers;  ///< Others to which there are messages.
};

/// Levels that together have up to `max_width` members are one.
void play(const std::vector<Sum>& inputs,
          const Members& group,
          double data,
          std::size_t max_width,
          Played& played) {
  const GridShape shape{.members = group.size(), .width = grid_row(group.size(), max_width).width};
  ASSERT_GE(shape.width, 1U);
  ASSERT_LE(shape.width, kMaxRowWidth);
  std::vector<Sum> sums;
  for (std::size_t row = 0; row < shape.rows(); ++row) {
    Sum sum{.first = inputs[row * shape.width].first};
    std::size_t shares = 0;
    const std::size_t others = shape.members_of(row) - 1;
    for (std::size_t member = 0; member < shape.members_of(row); ++member) {
      const Sum& input = inputs[row * shape.width + member];
      ASSERT_EQ(input.first, sum.first + sum.count) << "in member order";
      sum.count += input.count;
      const std::size_t owned = shape.shares_of(row, member);
      ASSERT_GE(owned, 1U);
      ASSERT_EQ(shape.first_share(row, member), shares);
      for (std::size_t share = shares; share < shares + owned; ++share) {
        ASSERT_EQ(shape.owner(row, share), member);
      }
      shares += owned;
      const double part = static_cast<double>(owned) / static_cast<double>(shape.width);
      const std::size_t number = group[row * shape.width + member];
      played.sent[number] += data * (1 - part) + data * part * static_cast<double>(others);
      played.peers[number] += others;
    }
    ASSERT_EQ(shares, shape.width);
    sums.push_back(sum);
  }
  if (shape.rows() == 1) {
    for (const std::size_t number : group) {
      Sum& combined = played.combined[number];
      ASSERT_TRUE(combined.count == 0 || combined == sums.front());
      combined = sums.front();
    }
    return;
  }
  for (std::size_t share = 0; share < shape.width; ++share) {
    Members column;
    for (const std::size_t owner : shape.column(share)) {
      column.push_back(group[owner]);
    }
    play(sums, column, data / static_cast<double>(shape.width), max_width, played);
  }
}

TEST(GridShape, every_element_has_all_inputs_in_member_order_and_bytes_are_optimal) {
  for (const std::size_t members : numbers_of_members()) {
    Members all(members);
    std::iota(all.begin(), all.end(), std::size_t{0});
    std::vector<Sum> inputs;
    for (const std::size_t member : all) {
      inputs.push_back({.first = member, .count = 1});
    }
    for (const std::size_t max_width : {1U, 7U}) {
      Played played{std::vector<Sum>(members),
                    std::vector<double>(members),
                    std::vector<std::size_t>(members)};
      play(inputs, all, 1.0, max_width, played);
      if (::testing::Test::HasFatalFailure()) {
        FAIL() << members << " members";
      }
      double sent = 0;
      for (const std::size_t member : all) {
        ASSERT_EQ(played.combined[member], (Sum{.first = 0, .count = members})) << members;
        ASSERT_LE(played.peers[member], 64U) << members << " members, member " << member;
        ASSERT_LE(played.sent[member], 2.75) << members << " members, member " << member;
        sent += played.sent[member];
      }
      const double bound = 2 * static_cast<double>(members - 1);
      ASSERT_NEAR(sent, bound, 1e-6 * (1 + bound)) << members << " members";
    }
  }
}

TEST(GridShape, messages_grow_with_the_logarithm) {
  for (const std::size_t members : numbers_of_members()) {
    const auto widths = grid_widths(members);
    std::size_t product = 1;
    for (const std::size_t width : widths) {
      product *= width;
    }
    EXPECT_GE(product, members);
    std::size_t bits = 0;
    while ((std::size_t{1} << bits) < members) {
      ++bits;
    }
    EXPECT_LE(widths.size(), std::max<std::size_t>(1, bits)) << members;
  }
  EXPECT_EQ(grid_widths(1), std::vector<std::size_t>());
  EXPECT_EQ(grid_widths(7), std::vector<std::size_t>({7}));
  EXPECT_EQ(grid_widths(16), std::vector<std::size_t>({2, 2, 2, 2}));
  EXPECT_EQ(grid_widths(1024), std::vector<std::size_t>(10, 2));
}

TEST(GridShape, a_wide_row_is_as_many_of_the_lowest_levels_as_it_holds) {
  const auto row = [](std::size_t members, std::size_t max_width) {
    const GridRow lowest = grid_row(members, max_width);
    return std::pair(lowest.width, lowest.order);
  };
  using Order = std::vector<std::size_t>;
  EXPECT_EQ(row(16, 1), std::pair(std::size_t{2}, Order({2})));
  EXPECT_EQ(row(16, 7), std::pair(std::size_t{4}, Order({2, 2})));
  EXPECT_EQ(row(6, 7), std::pair(std::size_t{6}, Order({3, 2})));
  EXPECT_EQ(row(1, 7), std::pair(std::size_t{1}, Order()));
}

TEST(GridShape, two_members_meet_in_one_row_or_column_alone) {
  for (const std::size_t members : {17U, 31U, 48U, 127U, 250U}) {
    std::set<std::pair<std::size_t, std::size_t>> met;
    const auto meet = [&](auto&& again, const Members& group) -> void {
      const GridShape shape{.members = group.size(), .width = grid_width(group.size())};
      for (std::size_t row = 0; row < shape.rows(); ++row) {
        for (std::size_t i = 0; i < shape.members_of(row); ++i) {
          for (std::size_t j = 0; j < i; ++j) {
            const std::size_t first = row * shape.width;
            EXPECT_TRUE(met.emplace(group[first + j], group[first + i]).second)
                << members << ": " << group[first + j] << " and " << group[first + i];
          }
        }
      }
      for (std::size_t share = 0; shape.rows() > 1 && share < shape.width; ++share) {
        Members column;
        for (const std::size_t owner : shape.column(share)) {
          column.push_back(group[owner]);
        }
        again(again, column);
      }
    };
    Members all(members);
    std::iota(all.begin(), all.end(), std::size_t{0});
    meet(meet, all);
  }
}

}  // namespace
}  // namespace lightcc::grid_shape_test
