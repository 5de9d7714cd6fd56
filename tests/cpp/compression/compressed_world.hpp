// Ranks in one thread that run compressed all-reduces of buckets, over a transport that counts
// their messages and can spoil them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/net/net_group.hpp"
#include "lightcc/compression/exchange/compressed_allreduce.hpp"
#include "lightcc/compression/residual/residual_store.hpp"

#include "compression/topk_testing.hpp"
#include "doubles/loopback_transport.hpp"

namespace lightcc::testing::compressed_world {

using Sizes = std::vector<std::size_t>;

inline constexpr std::uint32_t kBetweenBlocks = 2;  // Lanes of the groups here.
inline constexpr std::uint32_t kWithinBlock = 1;
inline constexpr int kPatience = 1'000'000;

struct Shape {
  int blocks = 2;
  int members = 1;
  std::size_t exchange_elements = kExchangeElements;  ///< CompressedJob::exchange_elements.
  int size() const { return blocks * members; }
};

/// What a rank sends over one lane.
struct Traffic {
  std::vector<std::size_t> messages;  ///< Bytes of each.
  /// Changes message `index` before it leaves.
  std::function<void(std::size_t index, Buffer& message)> spoil;
  std::size_t bytes() const {
    return std::accumulate(messages.begin(), messages.end(), std::size_t{0});
  }
};

class WatchedChannel final : public SendChannel {
 public:
  WatchedChannel(std::unique_ptr<SendChannel> channel, Traffic& traffic)
      : channel_(std::move(channel)), traffic_(traffic) {}

  Result<RequestId> isend(std::span<const std::byte> data) override {
    const std::size_t index = traffic_.messages.size();
    traffic_.messages.push_back(data.size());
    if (!traffic_.spoil) {
      return channel_->isend(data);
    }
    kept_.push_back(std::make_unique<Buffer>(data.begin(), data.end()));
    traffic_.spoil(index, *kept_.back());
    return channel_->isend(*kept_.back());
  }
  Result<bool> test(RequestId request) override { return channel_->test(request); }
  void cancel() override { channel_->cancel(); }

 private:
  std::vector<std::unique_ptr<Buffer>> kept_;  // Outlives the channel.
  std::unique_ptr<SendChannel> channel_;
  Traffic& traffic_;
};

class WatchedTransport final : public Transport {
 public:
  WatchedTransport(std::unique_ptr<Transport> transport, std::map<std::uint32_t, Traffic>& lanes)
      : transport_(std::move(transport)), lanes_(lanes) {}

  const TransportHandle& handle() const override { return transport_->handle(); }
  Result<std::unique_ptr<SendChannel>> connect(const TransportHandle& handle,
                                               const ChannelId& id) override {
    LIGHTCC_ASSIGN_OR_RETURN(auto channel, transport_->connect(handle, id));
    return std::unique_ptr<SendChannel>(
        std::make_unique<WatchedChannel>(std::move(channel), lanes_[id.lane]));
  }
  Result<std::unique_ptr<RecvChannel>> accept(const ChannelId& id) override {
    return transport_->accept(id);
  }
  Result<bool> poll() override { return transport_->poll(); }
  int wait_fd() const override { return transport_->wait_fd(); }
  std::uint64_t bytes_sent() const override { return transport_->bytes_sent(); }
  std::uint64_t bytes_received() const override { return transport_->bytes_received(); }

 private:
  std::unique_ptr<Transport> transport_;
  std::map<std::uint32_t, Traffic>& lanes_;
};

inline GridPosition position_of(const Shape& shape, int rank) {
  return {.blocks = static_cast<std::size_t>(shape.blocks),
          .block = static_cast<std::size_t>(rank / shape.members),
          .members = static_cast<std::size_t>(shape.members),
          .member = static_cast<std::size_t>(rank % shape.members)};
}

/// The `count` ranks first, first + stride, ... over `transport`; `own` is this rank among them.
inline std::unique_ptr<Group> group_of(Transport& transport,
                                       int first,
                                       int stride,
                                       int count,
                                       int own,
                                       std::uint32_t lane,
                                       std::size_t chunk_bytes) {
  std::vector<NetMember> members;
  for (int i = 0; i < count; ++i) {
    const auto rank = static_cast<std::uint32_t>(first + i * stride);
    members.push_back({.world_rank = rank, .handle = LoopbackHub::handle_of(rank)});
  }
  return make_net_group(transport, std::move(members), own, 7, lane, {.chunk_bytes = chunk_bytes});
}

inline std::unique_ptr<Group> group_between_blocks(Transport& transport,
                                                   const Shape& shape,
                                                   int rank,
                                                   std::size_t chunk_bytes) {
  return group_of(transport,
                  rank % shape.members,
                  shape.members,
                  shape.blocks,
                  rank / shape.members,
                  kBetweenBlocks,
                  chunk_bytes);
}

inline std::shared_ptr<GridState> grid_of(Transport& transport,
                                          const Shape& shape,
                                          int rank,
                                          std::size_t chunk_bytes) {
  const int member = rank % shape.members;
  GridLevels levels;
  levels.intra =
      group_of(transport, rank - member, 1, shape.members, member, kWithinBlock, chunk_bytes);
  levels.inter.push_back(group_between_blocks(transport, shape, rank, chunk_bytes));
  return make_grid_state(std::move(levels), {});
}

class Rank {
 public:
  Rank(LoopbackHub& hub, const Shape& shape, int rank)
      : transport_(hub.make_transport(static_cast<std::uint32_t>(rank)), lanes_),
        position_(position_of(shape, rank)),
        exchange_elements_(shape.exchange_elements) {
    constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
    if (shape.members == 1) {
      flat_ = group_between_blocks(transport_, shape, rank, kChunkBytes);
    } else {
      grid_ = grid_of(transport_, shape, rank, kChunkBytes);
    }
  }

  /// Starts a bucket of tensors `first` to `first + inputs.size()`.
  void begin(std::size_t first, std::vector<Buffer> inputs, const CompressionSpec& spec) {
    results_ = std::move(inputs);
    std::vector<CompressedTensor> tensors;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const std::size_t count = results_[i].size() / sizeof(float);
      auto entry = store_.entry({0, "tensor " + std::to_string(first + i)},
                                ResidualOf::kShard,
                                position_,
                                DataType::kFloat32,
                                count);
      tensors.push_back(
          {.span = {.in = results_[i].data(), .out = results_[i].data(), .count = count},
           .entry = *entry});
    }
    work_ = make_compressed_allreduce({.grid = grid_, .flat = flat_.get()},
                                      std::move(tensors),
                                      {.reduction = {.postscale = 0.5},
                                       .spec = spec,
                                       .counters = &counters_,
                                       .exchange_elements = exchange_elements_});
    status_ = {};
  }
  /// Returns whether it is over.
  bool advance() {
    if (work_ != nullptr) {
      const auto progress = work_->advance();
      if (!progress.ok() || *progress == Progress::kDone) {
        status_ = progress.status();
        work_.reset();
      }
    }
    EXPECT_TRUE(transport_.poll().ok());
    return work_ == nullptr;
  }
  void abandon() { work_.reset(); }

  const Status& status() const { return status_; }
  const std::vector<Buffer>& results() const { return results_; }
  Traffic& traffic(std::uint32_t lane) { return lanes_[lane]; }
  CompressionCounters& counters() { return counters_; }
  std::vector<Bytes> kept_back() const {
    auto saved = store_.save();
    EXPECT_TRUE(saved.ok()) << saved.status().message();
    std::vector<Bytes> all;
    for (auto& [key, bytes] : *saved) {
      all.push_back(std::move(bytes));
    }
    return all;
  }

 private:
  std::map<std::uint32_t, Traffic> lanes_;
  WatchedTransport transport_;
  GridPosition position_;
  std::size_t exchange_elements_;
  std::unique_ptr<Group> flat_;
  std::shared_ptr<GridState> grid_;
  ResidualStore store_;
  CompressionCounters counters_;
  std::vector<Buffer> results_;
  std::unique_ptr<Work> work_;
  Status status_;
};

class World {
 public:
  explicit World(const Shape& shape) {
    for (int rank = 0; rank < shape.size(); ++rank) {
      ranks_.push_back(std::make_unique<Rank>(hub_, shape, rank));
    }
  }

  Rank& rank(std::size_t index) { return *ranks_[index]; }
  std::vector<std::unique_ptr<Rank>>& ranks() { return ranks_; }

  /// A step of tensors [first, end) of `sizes`, in one bucket. `void_tensor` has a NaN on rank 1.
  void run(const Sizes& sizes,
           std::size_t first,
           std::size_t end,
           const CompressionSpec& spec,
           std::uint64_t seed,
           std::size_t void_tensor = ~std::size_t{0},
           int turns = kPatience) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      std::vector<Buffer> inputs;
      for (std::size_t i = first; i < end; ++i) {
        Rng rng(1'000'000 * seed + 1000 * i + rank);
        std::vector<double> values = normal_values(rng, sizes[i]);
        if (i == void_tensor && rank == 1) {
          values.back() = testing::kNan;
        }
        inputs.push_back(tensor_of(DataType::kFloat32, values));
      }
      ranks_[rank]->begin(first, std::move(inputs), spec);
    }
    drive(seed, turns);
  }
  void run_all(const Sizes& sizes, const CompressionSpec& spec, std::uint64_t seed) {
    run(sizes, 0, sizes.size(), spec, seed);
  }
  /// A step that ends after so many turns of ranks, as where the world fails.
  void run_in_part(const Sizes& sizes, const CompressionSpec& spec, std::uint64_t seed, int turns) {
    run(sizes, 0, sizes.size(), spec, seed, ~std::size_t{0}, turns);
  }

  void expect_ok() const {
    for (const auto& rank : ranks_) {
      EXPECT_TRUE(rank->status().ok()) << rank->status().message();
    }
  }

 private:
  /// One rank after another that the seed draws, until all are done or one has failed.
  void drive(std::uint64_t seed, int turns) {
    Rng rng(seed);
    std::set<std::size_t> left;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      left.insert(rank);
    }
    for (int turn = 0; turn < turns && !left.empty(); ++turn) {
      const std::size_t index = rng.below(ranks_.size());
      Rank& rank = *ranks_[index];
      if (rank.advance()) {
        left.erase(index);
      }
      if (!rank.status().ok()) {
        break;  // Others may wait for it without an end.
      }
    }
    EXPECT_TRUE(left.empty() || turns < kPatience ||
                std::ranges::any_of(ranks_, [](const auto& rank) { return !rank->status().ok(); }));
    for (const auto& rank : ranks_) {
      rank->abandon();
    }
  }

  LoopbackHub hub_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

inline Sizes many_sizes(std::size_t tensors) {
  Sizes sizes;
  for (std::size_t i = 0; i < tensors; ++i) {
    sizes.push_back(50 + i * 37 % 40);
  }
  return sizes;
}

/// Messages of rank 0 between blocks in a step.
inline std::vector<std::size_t> messages_of(World& world,
                                            const Sizes& sizes,
                                            const CompressionSpec& s) {
  world.run_all(sizes, s, 1);
  world.expect_ok();
  return world.rank(0).traffic(kBetweenBlocks).messages;
}

/// Tensors of all kinds of sizes, some without an element for each member.
inline const Sizes kMixed{700, 1, 90, 2, 4, 2000, 3, 33, 5, 600, 1};
inline void expect_the_bits_of_single_tensors(const Shape& shape, const CompressionSpec& spec) {
  SCOPED_TRACE(std::to_string(shape.blocks) + " x " + std::to_string(shape.members));
  constexpr std::uint64_t kSteps = 4;
  constexpr std::size_t kVoid = 5;
  World together(shape);
  World single(shape);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const std::size_t void_tensor = step == 2 ? kVoid : ~std::size_t{0};
    together.run(kMixed, 0, kMixed.size(), spec, step, void_tensor);
    together.expect_ok();
    for (std::size_t i = 0; i < kMixed.size(); ++i) {
      single.run(kMixed, i, i + 1, spec, step, void_tensor);
      single.expect_ok();
      for (std::size_t rank = 0; rank < single.ranks().size(); ++rank) {
        ASSERT_EQ(together.rank(rank).results()[i], single.rank(rank).results()[0])
            << "step " << step << ", tensor " << i << ", rank " << rank;
        ASSERT_EQ(together.rank(rank).results()[i], together.rank(0).results()[i]);
      }
    }
  }
  for (std::size_t rank = 0; rank < single.ranks().size(); ++rank) {
    EXPECT_EQ(together.rank(rank).kept_back(), single.rank(rank).kept_back());
    EXPECT_EQ(together.rank(rank).counters().sent_bytes, single.rank(rank).counters().sent_bytes);
  }
}

/// The first error where rank 1 spoils what it sends between blocks.
inline Status error_of(const CompressionSpec& spec,
                       const Sizes& sizes,
                       const std::function<void(std::size_t, Buffer&)>& spoil,
                       std::uint64_t seed = 1) {
  World world({.blocks = 2});
  world.rank(1).traffic(kBetweenBlocks).spoil = spoil;
  world.run_all(sizes, spec, seed);
  return world.rank(0).status();
}

}  // namespace lightcc::testing::compressed_world
