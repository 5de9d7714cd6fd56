#include "lightcc/engine/grid_choice.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::grid_choice_test {
namespace {

using Ranks = std::vector<std::int32_t>;

Ranks first_ranks(std::int32_t count) {
  Ranks ranks;
  for (std::int32_t rank = 0; rank < count; ++rank) {
    ranks.push_back(rank);
  }
  return ranks;
}

/// The choice for all ranks of a world on `hosts`.
GridChoice choose(const std::vector<int>& hosts,
                  std::optional<bool> wanted,
                  std::int64_t intra_size = 0) {
  return choose_grid(
      first_ranks(static_cast<std::int32_t>(hosts.size())), hosts, wanted, intra_size);
}

void expect_grid(const GridChoice& choice, const std::vector<Ranks>& blocks) {
  ASSERT_TRUE(choice.grid.has_value()) << choice.objection;
  EXPECT_EQ(choice.grid->blocks, blocks);
  EXPECT_EQ(choice.objection, "");
}

void expect_flat(const GridChoice& choice, const std::string& objection = "") {
  EXPECT_FALSE(choice.grid.has_value());
  if (objection.empty()) {
    EXPECT_EQ(choice.objection, "");
  } else {
    EXPECT_NE(choice.objection.find(objection), std::string::npos) << choice.objection;
  }
}

TEST(GridChoice, blocks_are_the_ranks_of_each_host_by_their_lowest_rank) {
  expect_grid(choose({0, 0, 1, 1}, true), {{0, 1}, {2, 3}});
  expect_grid(choose({0, 1, 0, 1, 2, 2}, true), {{0, 2}, {1, 3}, {4, 5}});
  expect_grid(choose({0, 0, 1, 1}, std::nullopt), {{0, 1}, {2, 3}});
}

TEST(GridChoice, a_given_size_cuts_hosts_into_blocks) {
  expect_grid(choose({0, 0, 0, 0}, true, 2), {{0, 1}, {2, 3}});
  expect_grid(choose({0, 0, 0, 0, 1, 1, 1, 1}, std::nullopt, 2), {{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  expect_grid(choose({0, 1, 1, 0, 0, 0}, true, 2), {{0, 3}, {1, 2}, {4, 5}});
}

TEST(GridChoice, within_one_host_a_grid_must_be_asked_for) {
  expect_flat(choose({0, 0, 0, 0}, std::nullopt, 2));
}

TEST(GridChoice, switched_off_there_is_none_and_nothing_to_say) {
  expect_flat(choose({0, 0, 1, 1}, false));
  expect_flat(choose({0, 0, 1}, false, 2));
}

TEST(GridChoice, one_block_or_blocks_of_one_need_no_grid_which_is_said_if_it_was_asked_for) {
  expect_flat(choose({0, 0, 0}, true), "all ranks form one block");
  expect_flat(choose({0, 0, 0, 0}, true, 4), "all ranks form one block");
  expect_flat(choose({0, 1, 2}, true), "each block has one rank");
  expect_flat(choose({0, 0, 1, 1}, true, 1), "each block has one rank");
  expect_flat(choose({0, 1, 2}, std::nullopt));
  expect_flat(choose({0}, true, 8));
}

TEST(GridChoice, uneven_hosts_are_an_objection_that_names_both) {
  expect_flat(choose({0, 1, 1}, true),
              "different numbers of ranks: 1 on the host of rank 0, 2 on the host of rank 1");
  expect_flat(choose({0, 0, 1}, std::nullopt), "different numbers of ranks");
}

TEST(GridChoice, a_size_that_divides_no_host_is_an_objection_that_names_it) {
  expect_flat(choose({0, 0}, true, 8), "LIGHT_INTRA_SIZE=8 does not divide the 2 on the host of");
  expect_flat(choose({0, 0, 0, 1, 1, 1}, true, 2), "LIGHT_INTRA_SIZE=2 does not divide the 3");
}

TEST(GridChoice, a_process_set_has_a_grid_of_its_own_members) {
  const std::vector<int> hosts = {0, 0, 0, 1, 1, 1};
  const auto choice = choose_grid({0, 2, 3, 4}, hosts, true, 0);
  expect_grid(choice, {{0, 2}, {3, 4}});
  expect_flat(choose_grid({0, 3, 4}, hosts, true, 0), "different numbers");
  expect_flat(choose_grid({1, 3}, hosts, true, 0));
}

}  // namespace
}  // namespace lightcc::grid_choice_test
