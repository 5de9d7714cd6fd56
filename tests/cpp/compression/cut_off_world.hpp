// Compressed all-reduces of ranks in one thread that end anywhere, as where a rank dies.
#pragma once

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
#include "lightcc/compression/topk_store.hpp"
#include "lightcc/compression/topk_work.hpp"

#include "compression/compressed_world.hpp"
#include "compression/topk_testing.hpp"
#include "doubles/loopback_transport.hpp"

namespace lightcc::testing::cut_off {

using compressed_world::grid_of;
using compressed_world::group_of;
using compressed_world::position_of;
using compressed_world::Shape;

/// Where tensors are, and what is kept back of them.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  virtual TopkKernels& kernels() = 0;
  virtual bool is_of_gpu() const = 0;
  virtual std::shared_ptr<std::byte> hold(const Buffer& tensor) = 0;
  /// Waits until what was begun is done.
  virtual void wait() = 0;
};

class HostMemory final : public Memory {
 public:
  TopkKernels& kernels() override { return compressed_world::kernels(); }
  bool is_of_gpu() const override { return false; }
  std::shared_ptr<std::byte> hold(const Buffer& tensor) override {
    const auto held = std::make_shared<Buffer>(tensor);
    return {held, held->data()};
  }
  void wait() override {}
};

inline Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

inline constexpr std::size_t kSizes[] = {700, 90, 2000};
inline constexpr std::size_t kTensors = std::size(kSizes);
inline constexpr std::uint64_t kPatience = 1'000'000;

inline constexpr std::size_t kChunkBytes = 256;

inline TopkStore::Key key_of(std::size_t tensor) {
  return {0, "tensor " + std::to_string(tensor)};
}

class Rank {
 public:
  Rank(LoopbackHub& hub, const Shape& shape, int rank, Memory& memory)
      : memory_(memory),
        transport_(hub.make_transport(static_cast<std::uint32_t>(rank))),
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
      results_.push_back(memory_.hold(tensor_of(DataType::kFloat32, values)));
      auto entry =
          store_.entry(key_of(i), position_, DataType::kFloat32, kSizes[i], memory_.kernels());
      tensors.push_back(
          {.span = {.in = results_[i].get(), .out = results_[i].get(), .count = kSizes[i]},
           .entry = *entry});
    }
    const CompressedJob job{.reduction = {},
                            .spec = spec,
                            .counters = &counters_,
                            .on_device = memory_.is_of_gpu(),
                            .exchange_elements = exchange_elements_};
    work_ =
        make_compressed_allreduce({.grid = grid_, .flat = flat_.get()}, std::move(tensors), job);
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
  Memory& memory_;
  std::unique_ptr<Transport> transport_;
  GridPosition position_;
  std::size_t exchange_elements_;
  std::unique_ptr<Group> flat_;
  std::shared_ptr<GridState> grid_;
  TopkStore store_{compressed_world::kernels()};
  TopkCounters counters_;
  std::vector<std::shared_ptr<std::byte>> results_;
  std::unique_ptr<Work> work_;
  bool is_done_ = false;
};

class World {
 public:
  World(const Shape& shape, const CompressionSpec& spec, Memory& memory = host_memory())
      : memory_(memory), spec_(spec) {
    for (int rank = 0; rank < shape.size(); ++rank) {
      ranks_.push_back(std::make_unique<Rank>(hub_, shape, rank, memory));
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
      if (turn + 1 < turns) {  // So that turns are the same ones each time.
        memory_.wait();
      }
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
  Memory& memory_;
  CompressionSpec spec_;
  LoopbackHub hub_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

/// What each rank has of each tensor after so many steps without a failure, the third maybe void.
/// In host memory.
inline std::vector<std::map<std::string, Bytes>> states_after(const Shape& shape,
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

/// Cuts the third step off after so many turns, and returns whether a rank had finished it.
inline bool expect_both_sides(const Shape& shape,
                              const CompressionSpec& spec,
                              const std::vector<std::map<std::string, Bytes>>& before,
                              const std::vector<std::map<std::string, Bytes>>& after,
                              bool is_void,
                              std::uint64_t turns,
                              Memory& memory) {
  World world(shape, spec, memory);
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
      EXPECT_NE(state, nullptr) << name << " of rank " << rank;
      if (state != nullptr) {
        EXPECT_EQ(*state, (is_finished ? after : before)[rank].at(name));
      }
    }
  }
  return is_finished;
}

inline void expect_both_sides_anywhere(const Shape& shape,
                                       const CompressionSpec& spec,
                                       bool is_void = false,
                                       Memory& memory = host_memory()) {
  SCOPED_TRACE(std::string(compressor_name(spec.compressor)) + ", ratio " +
               std::to_string(spec.ratio) + ", " + std::to_string(shape.blocks) + " x " +
               std::to_string(shape.members));
  const auto before = states_after(shape, spec, 2, is_void);
  const auto after = states_after(shape, spec, 3, is_void);
  World whole(shape, spec, memory);
  whole.finish(0);
  whole.finish(1);
  whole.begin(2, is_void);
  Rng rng(7);
  const std::uint64_t turns = whole.drive(rng, kPatience);
  int finished = 0;
  int unfinished = 0;
  const std::uint64_t stride =
      memory.is_of_gpu() ? turns / 9 + 1 : static_cast<std::uint64_t>(shape.size() - 1);
  for (std::uint64_t cut = 0; cut <= turns + turns / 2; cut += stride) {
    const bool is_finished = expect_both_sides(shape, spec, before, after, is_void, cut, memory);
    ++(is_finished ? finished : unfinished);
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
  const int few = memory.is_of_gpu() ? 1 : 5;
  EXPECT_GT(finished, few);
  EXPECT_GT(unfinished, few);
}

}  // namespace lightcc::testing::cut_off
