// A compressed all-reduce that ends anywhere, as where a rank dies: whatever each rank has done by
// then, it has what goes with the step if one rank has finished it, and else what was before it.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"
#include "lightcc/collectives/grid_group.hpp"
#include "lightcc/compression/low_rank_work.hpp"
#include "lightcc/compression/topk_store.hpp"
#include "lightcc/compression/topk_work.hpp"

#include "compression/compressed_world.hpp"
#include "compression/topk_testing.hpp"
#include "doubles/loopback_transport.hpp"

namespace lightcc::cut_off_test {
namespace {

using testing::Buffer;
using testing::normal_values;
using testing::tensor_of;
using testing::compressed_world::grid_of;
using testing::compressed_world::group_of;
using testing::compressed_world::kernels;
using testing::compressed_world::position_of;
using testing::compressed_world::Shape;

constexpr std::size_t kSizes[] = {700, 90, 2000};
constexpr std::size_t kTensors = std::size(kSizes);
constexpr std::uint64_t kPatience = 1'000'000;

constexpr std::size_t kChunkBytes = 256;

TopkStore::Key key_of(std::size_t tensor) {
  return {0, "tensor " + std::to_string(tensor)};
}

class Rank {
 public:
  Rank(LoopbackHub& hub, const Shape& shape, int rank)
      : transport_(hub.make_transport(static_cast<std::uint32_t>(rank))),
        position_(position_of(shape, rank)),
        exchange_elements_(shape.exchange_elements),
        flat_(group_of(*transport_, 0, 1, shape.size(), rank, 0, kChunkBytes)) {
    if (shape.members > 1) {
      grid_ = grid_of(*transport_, shape, rank, kChunkBytes);
    }
  }

  void begin(const CompressionSpec& spec, std::uint64_t seed, bool is_void) {
    Rng rng(seed);
    std::vector<CompressedTensor> tensors;
    results_.clear();
    for (std::size_t i = 0; i < kTensors; ++i) {
      std::vector<double> values = normal_values(rng, kSizes[i]);
      values[5] = is_void ? testing::kNan : values[5];
      results_.push_back(tensor_of(DataType::kFloat32, values));
      auto entry =
          spec.is_low_rank()
              ? store_.low_rank_entry(key_of(i),
                                      position_,
                                      DataType::kFloat32,
                                      {.rows = 10, .cols = kSizes[i] / 10},
                                      spec.matrix_rank,
                                      kernels())
              : store_.entry(key_of(i), position_, DataType::kFloat32, kSizes[i], kernels());
      tensors.push_back(
          {.span = {.in = results_[i].data(), .out = results_[i].data(), .count = kSizes[i]},
           .entry = *entry});
    }
    const CompressedJob job{.reduction = {},
                            .spec = spec,
                            .counters = &counters_,
                            .exchange_elements = exchange_elements_};
    work_ = spec.is_low_rank() ? make_low_rank_allreduce(*flat_, std::move(tensors), job)
                               : make_compressed_allreduce(
                                     {.grid = grid_, .flat = flat_.get()}, std::move(tensors), job);
    is_done_ = false;
  }
  void advance() {
    if (!is_done_) {
      const auto progress = work_->advance();
      ASSERT_TRUE(progress.ok()) << progress.status().message();
      is_done_ = *progress == Progress::kDone;
    }
    ASSERT_TRUE(transport_->poll().ok());
  }
  bool is_done() const { return is_done_; }
  void mark() { store_.mark(); }
  /// As the executor does where a world fails.
  void cut_off() { work_.reset(); }
  std::map<std::string, TopkMoments> moments() const {
    std::map<std::string, TopkMoments> found;
    for (auto& [key, moments] : store_.moments()) {
      found.emplace(key.second, std::move(moments));
    }
    return found;
  }

 private:
  std::unique_ptr<Transport> transport_;
  GridPosition position_;
  std::size_t exchange_elements_;
  std::unique_ptr<Group> flat_;
  std::shared_ptr<GridState> grid_;
  TopkStore store_{kernels()};
  TopkCounters counters_;
  std::vector<Buffer> results_;
  std::unique_ptr<Work> work_;
  bool is_done_ = false;
};

class World {
 public:
  World(const Shape& shape, const CompressionSpec& spec) : spec_(spec) {
    for (int rank = 0; rank < shape.size(); ++rank) {
      ranks_.push_back(std::make_unique<Rank>(hub_, shape, rank));
    }
  }

  std::vector<std::unique_ptr<Rank>>& ranks() { return ranks_; }

  void begin(std::uint64_t step, bool is_void = false) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank]->begin(spec_, 100 * step + rank, is_void && rank == 0);
    }
  }
  /// One rank after another that `rng` draws; returns after how many turns all are done.
  std::uint64_t drive(Rng& rng, std::uint64_t turns) {
    for (std::uint64_t turn = 0; turn < turns; ++turn) {
      bool are_done = true;
      for (const auto& rank : ranks_) {
        are_done = are_done && rank->is_done();
      }
      if (are_done) {
        return turn;
      }
      ranks_[rng.below(ranks_.size())]->advance();
    }
    return turns;
  }
  void finish(std::uint64_t step, bool is_void = false) {
    Rng rng(step);
    begin(step, is_void);
    ASSERT_LT(drive(rng, kPatience), kPatience);
    for (const auto& rank : ranks_) {
      rank->mark();
    }
  }

 private:
  CompressionSpec spec_;
  LoopbackHub hub_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

const Bytes* state_at(const TopkMoments& moments, const TopkSteps& at) {
  for (const auto& [steps, bytes] : moments.states) {
    if (steps == at) {
      return &bytes;
    }
  }
  return nullptr;
}

/// What each rank has of each tensor after so many steps without a failure, the third maybe void.
std::vector<std::map<std::string, Bytes>> states_after(const Shape& shape,
                                                       const CompressionSpec& spec,
                                                       std::uint64_t steps,
                                                       bool is_void) {
  World world(shape, spec);
  for (std::uint64_t step = 0; step < steps; ++step) {
    world.finish(step, is_void && step == 2);
  }
  std::vector<std::map<std::string, Bytes>> found;
  for (const auto& rank : world.ranks()) {
    auto& states = found.emplace_back();
    for (const auto& [name, moments] : rank->moments()) {
      states[name] = *state_at(moments, *moments.marked);
    }
  }
  return found;
}

/// Cuts the third step off after so many turns, and returns whether a rank had finished it. At low
/// rank, a rank that has not finished it has no state of after it.
bool expect_both_sides(const Shape& shape,
                       const CompressionSpec& spec,
                       const std::vector<std::map<std::string, Bytes>>& before,
                       const std::vector<std::map<std::string, Bytes>>& after,
                       bool is_void,
                       std::uint64_t turns) {
  World world(shape, spec);
  world.finish(0);
  world.finish(1);
  world.begin(2, is_void);
  Rng rng(turns);
  world.drive(rng, turns);
  bool is_finished = false;
  for (const auto& rank : world.ranks()) {
    is_finished = is_finished || rank->is_done();
  }
  for (const auto& rank : world.ranks()) {
    rank->cut_off();
  }
  for (std::size_t rank = 0; rank < world.ranks().size(); ++rank) {
    for (const auto& [name, moments] : world.ranks()[rank]->moments()) {
      EXPECT_EQ(moments.marked, (TopkSteps{.steps = 2, .counted = 2}));
      const TopkSteps wanted = is_finished ? TopkSteps{3, is_void ? 2U : 3U} : TopkSteps{2, 2};
      const Bytes* const state = state_at(moments, wanted);
      const bool may_lack = is_finished && spec.is_low_rank() && !world.ranks()[rank]->is_done();
      EXPECT_TRUE(state != nullptr || may_lack) << name << " of rank " << rank;
      if (state != nullptr) {
        EXPECT_EQ(*state, (is_finished ? after : before)[rank].at(name));
      }
    }
  }
  return is_finished;
}

void expect_both_sides_anywhere(const Shape& shape,
                                const CompressionSpec& spec,
                                bool is_void = false) {
  SCOPED_TRACE(std::string(compressor_name(spec.compressor)) + ", ratio " +
               std::to_string(spec.ratio) + ", " + std::to_string(shape.blocks) + " x " +
               std::to_string(shape.members));
  const auto before = states_after(shape, spec, 2, is_void);
  const auto after = states_after(shape, spec, 3, is_void);
  World whole(shape, spec);
  whole.finish(0);
  whole.finish(1);
  whole.begin(2, is_void);
  Rng rng(7);
  const std::uint64_t turns = whole.drive(rng, kPatience);
  int finished = 0;
  int unfinished = 0;
  const auto stride = static_cast<std::uint64_t>(shape.size() - 1);
  for (std::uint64_t cut = 0; cut <= turns + turns / 2; cut += stride) {
    const bool is_finished = expect_both_sides(shape, spec, before, after, is_void, cut);
    ++(is_finished ? finished : unfinished);
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
  EXPECT_GT(finished, 5);
  EXPECT_GT(unfinished, 5);
}

TEST(CutOff, leaves_both_sides_of_the_step_to_all_hosts_of_one) {
  for (const CompressionSpec& spec : {CompressionSpec{.ratio = 0.01},
                                      CompressionSpec{.ratio = 0.01, .momentum = 0.9},
                                      CompressionSpec{.ratio = 0.3},
                                      CompressionSpec{.ratio = 1.0},
                                      CompressionSpec{.compressor = Compressor::kInt8},
                                      CompressionSpec{.compressor = Compressor::kSign}}) {
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

TEST(CutOff, leaves_what_was_before_it_at_low_rank) {
  expect_both_sides_anywhere(
      {.blocks = 3, .members = 1},
      {.compressor = Compressor::kLowRank, .matrix_rank = 2, .min_compression_rate = 1.0});
}

TEST(CutOff, after_several_steps_since_the_mark_has_what_was_there_then) {
  for (const CompressionSpec& spec :
       {CompressionSpec{.ratio = 0.01},
        CompressionSpec{.ratio = 0.01, .momentum = 0.9},
        CompressionSpec{.compressor = Compressor::kInt4},
        CompressionSpec{
            .compressor = Compressor::kLowRank, .matrix_rank = 2, .min_compression_rate = 1.0}}) {
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
       {CompressionSpec{.ratio = 0.01},
        CompressionSpec{.compressor = Compressor::kInt4},
        CompressionSpec{
            .compressor = Compressor::kLowRank, .matrix_rank = 2, .min_compression_rate = 1.0}}) {
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
