// Levels for every number of members, without any I/O: who owns what, in which order contributions
// meet, how many bytes and messages that takes.
#include "lightcc/collectives/grid/grid_shape.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <set>
#include <string>
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

/// Contributions that follow one another in the order of combination.
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
  std::vector<double> crossed;     ///< What of it passes between switches, by depth from 1 on.
};

using Paths = std::vector<std::string>;

Paths switches_of(const Members& group, const Paths& paths) {
  Paths of_group;
  for (const std::size_t member : group) {
    of_group.push_back(paths[member]);
  }
  return of_group;
}

GridShape shape_of(const Members& group, const Paths& paths, std::size_t max_width) {
  const MembersBySwitch switches = by_switch(switches_of(group, paths));
  return rows_of(switches, grid_row(max_members(switches), max_width).width);
}

/// Levels that together have up to `max_width` members are one.
void play(const std::vector<Sum>& inputs,
          const Members& group,
          const Paths& paths,
          double data,
          std::size_t max_width,
          Played& played) {
  const GridShape shape = shape_of(group, paths, max_width);
  ASSERT_GE(shape.width, 1U);
  ASSERT_LE(shape.width, kMaxRowWidth);
  std::vector<Sum> sums;
  for (std::size_t row = 0; row < shape.rows.size(); ++row) {
    Sum sum{.first = inputs[shape.rows[row].front()].first};
    std::size_t shares = 0;
    const std::size_t others = shape.members_of(row) - 1;
    for (std::size_t member = 0; member < shape.members_of(row); ++member) {
      const Sum& input = inputs[shape.rows[row][member]];
      ASSERT_EQ(input.first, sum.first + sum.count) << "in order";
      sum.count += input.count;
      const std::size_t owned = shape.shares_of(row, member);
      ASSERT_GE(owned, 1U);
      ASSERT_EQ(shape.first_share(row, member), shares);
      for (std::size_t share = shares; share < shares + owned; ++share) {
        ASSERT_EQ(shape.owner(row, share), member);
      }
      shares += owned;
      const double part = static_cast<double>(owned) / static_cast<double>(shape.width);
      const std::size_t number = group[shape.rows[row][member]];
      played.sent[number] += data * (1 - part) + data * part * static_cast<double>(others);
      played.peers[number] += others;
      for (std::size_t other = 0; other <= others; ++other) {
        const std::string& there = paths[group[shape.rows[row][other]]];
        const auto shares_sent = static_cast<double>(owned + shape.shares_of(row, other));
        for (std::size_t depth = 1; depth <= played.crossed.size(); ++depth) {
          if (outer_switches(paths[number], depth) != outer_switches(there, depth)) {
            played.crossed[depth - 1] += data * shares_sent / static_cast<double>(shape.width);
          }
        }
      }
    }
    ASSERT_EQ(shares, shape.width);
    sums.push_back(sum);
  }
  if (shape.rows.size() == 1) {
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
    play(sums, column, paths, data / static_cast<double>(shape.width), max_width, played);
  }
}

/// In the order of combination.
Members ordered(const Paths& paths) {
  std::vector<Members> order;
  for (const GridTier& tier : grid_tiers(paths)) {
    std::vector<Members> outer;
    for (const Members& within : tier.switches) {
      Members& all = outer.emplace_back();
      for (const std::size_t number : within) {
        const Members own = order.empty() ? Members{number} : order[number];
        all.insert(all.end(), own.begin(), own.end());
      }
    }
    order = std::move(outer);
  }
  return order.front();
}

Played played_by(const Paths& paths, std::size_t depths, std::size_t max_width) {
  const std::size_t members = paths.size();
  Members all(members);
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<Sum> inputs(members);
  const Members order = ordered(paths);
  EXPECT_EQ(std::set(order.begin(), order.end()).size(), members);
  for (std::size_t i = 0; i < members; ++i) {
    inputs[order[i]] = {.first = i, .count = 1};
  }
  Played played{.combined = std::vector<Sum>(members),
                .sent = std::vector<double>(members),
                .peers = std::vector<std::size_t>(members),
                .crossed = std::vector<double>(depths)};
  play(inputs, all, paths, 1.0, max_width, played);
  return played;
}

TEST(GridShape, every_element_has_all_inputs_in_member_order_and_bytes_are_optimal) {
  for (const std::size_t members : numbers_of_members()) {
    ASSERT_TRUE(std::ranges::is_sorted(ordered(Paths(members))));
    for (const std::size_t max_width : {1U, 7U}) {
      const Played played = played_by(Paths(members), 0, max_width);
      if (::testing::Test::HasFatalFailure()) {
        FAIL() << members << " members";
      }
      double sent = 0;
      for (std::size_t member = 0; member < members; ++member) {
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

/// Hosts in zones of racks; some know no rack. `mixed`: not one rack after another.
Paths some_cluster(std::mt19937& random, std::size_t max_hosts, bool mixed) {
  const auto up_to = [&](std::size_t maximum) { return 1 + random() % maximum; };
  Paths paths;
  const std::size_t zones = up_to(4);
  const std::size_t equal = up_to(2) == 1 ? up_to(max_hosts) : 0;
  for (std::size_t zone = 0; zone < zones; ++zone) {
    const std::size_t racks = up_to(4);
    for (std::size_t rack = 0; rack < racks; ++rack) {
      const std::string path =
          "zone" + std::to_string(zone) + (up_to(9) == 1 ? "" : ".rack" + std::to_string(rack));
      paths.insert(paths.end(), equal != 0 ? equal : up_to(max_hosts), path);
    }
  }
  if (mixed) {
    std::ranges::shuffle(paths, random);
  }
  return paths;
}

TEST(GridShape, as_little_as_can_be_passes_between_switches) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const Paths paths = some_cluster(random, round % 2 == 0 ? 6 : 40, round % 3 != 0);
    const Played played = played_by(paths, 2, round % 4 < 2 ? 1 : 7);
    if (::testing::Test::HasFatalFailure()) {
      FAIL() << "round " << round;
    }
    const double sent = std::reduce(played.sent.begin(), played.sent.end());
    ASSERT_NEAR(sent, 2 * static_cast<double>(paths.size() - 1), 1e-6 * (1 + sent));
    for (const Sum& combined : played.combined) {
      ASSERT_EQ(combined, (Sum{.first = 0, .count = paths.size()}));
    }
    for (std::size_t depth = 1; depth <= 2; ++depth) {
      std::set<std::string> switches;
      for (const std::string& path : paths) {
        switches.emplace(outer_switches(path, depth));
      }
      const double bound = 2 * static_cast<double>(switches.size() - 1);
      ASSERT_NEAR(played.crossed[depth - 1], bound, 1e-6 * (1 + bound)) << "depth " << depth;
    }
  }
}

TEST(GridShape, switches_that_all_or_no_two_members_share_change_nothing) {
  Paths apart;
  for (std::size_t member = 0; member < 50; ++member) {
    apart.push_back("rack" + std::to_string(member));
  }
  for (const Paths& paths : {Paths(50), Paths(50, "a.b"), apart}) {
    const std::vector<GridTier> tiers = grid_tiers(paths);
    ASSERT_EQ(tiers.size(), 1U);
    EXPECT_EQ(tiers.front().widths, grid_widths(50));
    EXPECT_EQ(tiers.front().switches, grid_tiers(Paths(50)).front().switches);
  }
}

TEST(GridShape, neighbours_are_those_of_a_switch_in_order_of_appearance) {
  const Paths paths = {"a.1", "b.1", "a.1", "a.2", "b.1", "c"};
  EXPECT_EQ(by_switch(paths), (MembersBySwitch{{0, 2}, {1, 4}, {3}, {5}}));
  EXPECT_EQ(by_switch({"a.1", "b.1", "a.2", "c"}), (MembersBySwitch{{0, 2}, {1}, {3}}));
  EXPECT_EQ(rows_of({{0, 2, 3}, {1, 4}}, 2).rows, (MembersBySwitch{{0, 2}, {3}, {1, 4}}));
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
      const GridShape shape = rows_of(group.size(), grid_width(group.size()));
      for (std::size_t row = 0; row < shape.rows.size(); ++row) {
        for (std::size_t i = 0; i < shape.members_of(row); ++i) {
          for (std::size_t j = 0; j < i; ++j) {
            const auto pair = std::pair(group[shape.rows[row][j]], group[shape.rows[row][i]]);
            EXPECT_TRUE(met.insert(pair).second)
                << members << ": " << pair.first << " and " << pair.second;
          }
        }
      }
      for (std::size_t share = 0; shape.rows.size() > 1 && share < shape.width; ++share) {
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
