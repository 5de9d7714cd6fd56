// A compressed all-reduce that ends anywhere, as where a rank dies: whatever each rank has done by
// then, it has what goes with the step if one rank has finished it, and else what was before it.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"
#include "lightcc/compression/topk_store.hpp"

#include "compression/cut_off_world.hpp"

namespace lightcc::cut_off_test {
namespace {

using testing::state_at;
using testing::cut_off::expect_both_sides_anywhere;
using testing::cut_off::kPatience;
using testing::cut_off::World;

TEST(CutOff, leaves_both_sides_of_the_step_to_all_hosts_of_one) {
  for (const CompressionSpec& spec : {CompressionSpec{.ratio = 0.01},
                                      CompressionSpec{.ratio = 0.01, .momentum = 0.9},
                                      CompressionSpec{.ratio = 0.3},
                                      CompressionSpec{.ratio = 1.0},
                                      CompressionSpec{.compressor = Compressor::kInt8}}) {
    expect_both_sides_anywhere({.blocks = 3, .members = 1}, spec);
  }
}

TEST(CutOff, leaves_both_sides_of_the_step_to_all_ranks_of_a_grid) {
  for (const CompressionSpec& spec : {CompressionSpec{.ratio = 0.02},
                                      CompressionSpec{.ratio = 0.3},
                                      CompressionSpec{.compressor = Compressor::kInt4}}) {
    expect_both_sides_anywhere({.blocks = 2, .members = 2}, spec);
  }
}

TEST(CutOff, leaves_both_sides_where_a_bucket_is_exchanged_in_parts) {
  for (const CompressionSpec& spec :
       {CompressionSpec{.ratio = 0.01, .momentum = 0.9}, CompressionSpec{.ratio = 0.3}}) {
    expect_both_sides_anywhere({.blocks = 3, .members = 1, .exchange_elements = 1}, spec);
    expect_both_sides_anywhere({.blocks = 2, .members = 2, .exchange_elements = 1}, spec);
  }
}

TEST(CutOff, leaves_both_sides_of_a_void_step) {
  for (const CompressionSpec& spec :
       {CompressionSpec{.ratio = 0.01}, CompressionSpec{.compressor = Compressor::kInt4}}) {
    expect_both_sides_anywhere({.blocks = 3, .members = 1}, spec, true);
  }
}

TEST(CutOff, after_several_steps_since_the_mark_has_what_was_there_then) {
  for (const CompressionSpec& spec : {CompressionSpec{.ratio = 0.01},
                                      CompressionSpec{.ratio = 0.01, .momentum = 0.9},
                                      CompressionSpec{.compressor = Compressor::kInt4}}) {
    for (const bool is_void : {false, true}) {
      World world({.blocks = 3}, spec);
      world.finish(0);
      std::vector<std::map<std::string, TopkMoments>> before;
      for (const auto& rank : world.ranks()) {
        before.push_back(rank->moments());
      }
      Rng rng(3);
      for (const std::uint64_t step : {1U, 2U, 3U}) {
        world.begin(step, is_void && step == 1);
        ASSERT_LT(world.drive(rng, kPatience), kPatience);
      }
      world.begin(4);
      ASSERT_EQ(world.drive(rng, 20), 20);
      for (const auto& rank : world.ranks()) {
        rank->cut_off();
      }
      for (std::size_t rank = 0; rank < before.size(); ++rank) {
        for (const auto& [name, moments] : world.ranks()[rank]->moments()) {
          const TopkSteps at{.steps = 1, .counted = 1};
          const Bytes* const state = state_at(moments, at);
          ASSERT_NE(state, nullptr) << name << " of rank " << rank;
          EXPECT_EQ(*state, *state_at(before[rank].at(name), at));
          EXPECT_NE(state_at(moments, {.steps = 4, .counted = is_void ? 3U : 4U}), nullptr);
        }
      }
      for (const auto& rank : world.ranks()) {  // A new mark takes the place of the old one.
        rank->mark();
        EXPECT_EQ(state_at(rank->moments().at("tensor 0"), {.steps = 1, .counted = 1}), nullptr);
      }
    }
  }
}

TEST(CutOff, after_a_void_step_has_what_was_before_it) {
  for (const CompressionSpec& spec :
       {CompressionSpec{.ratio = 0.01}, CompressionSpec{.compressor = Compressor::kInt4}}) {
    World world({.blocks = 3}, spec);
    world.finish(0);
    std::vector<std::map<std::string, TopkMoments>> before;
    for (const auto& rank : world.ranks()) {
      before.push_back(rank->moments());
    }
    world.begin(1, true);
    Rng rng(3);
    ASSERT_LT(world.drive(rng, kPatience), kPatience);
    for (std::size_t rank = 0; rank < before.size(); ++rank) {
      for (const auto& [name, moments] : world.ranks()[rank]->moments()) {
        const TopkSteps at{.steps = 1, .counted = 1};
        const Bytes* const state = state_at(moments, at);
        ASSERT_NE(state, nullptr);
        EXPECT_EQ(*state, *state_at(before[rank].at(name), at));
        EXPECT_NE(state_at(moments, {.steps = 2, .counted = 1}), nullptr);
        EXPECT_EQ(state_at(moments, {.steps = 2, .counted = 2}), nullptr);
      }
    }
  }
}

}  // namespace
}  // namespace lightcc::cut_off_test
