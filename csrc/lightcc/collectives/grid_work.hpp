// The pipeline of a two-level all-reduce. (Essay: grid_group.cpp.)
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid_group.hpp"
#include "lightcc/collectives/grid_plan.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net_bucket.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// Shared by a group and its Works, so that either may go first.
struct GridState {
  GridLevels levels;
  GridGroupOptions options;
  Status status;  ///< Ok while the levels can be used.

  /// Ends both levels for the reason of `why` (the first one stays). No Work of theirs is left.
  void fail(const Status& why);
};

class GridWork final : public Work {
 public:
  GridWork(std::shared_ptr<GridState> state, BucketView bucket, const Reduction& reduction);
  GridWork(const GridWork&) = delete;
  GridWork& operator=(const GridWork&) = delete;
  ~GridWork() override;

  Result<Progress> advance() override;

 private:
  /// One of the inter groups: chunks c, c + inter.size(), c + 2 * inter.size(), ... go through it.
  struct Exchange {
    std::size_t chunk = 0;  ///< That it works on or waits for.
    std::unique_ptr<Work> work;
  };

  Result<bool> advance_intra();
  Result<bool> advance_exchange(std::size_t index);
  void drop_works();
  bool is_exchanged(std::size_t chunk) const {
    return exchanges_[chunk % exchanges_.size()].chunk > chunk;
  }

  std::unique_ptr<Work> start_scatter(std::size_t chunk);
  std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group);
  std::unique_ptr<Work> start_gather(std::size_t chunk);
  /// Calls visit(piece, result) for what lies together of the own shard of `chunk`; `result` is
  /// where its result goes on its way, never null.
  template <typename Visit>
  void for_each_own_piece(std::size_t chunk, Visit visit);
  std::vector<std::size_t> counts_of(std::size_t chunk) const;
  std::size_t me() const { return static_cast<std::size_t>(state_->levels.intra->rank()); }
  std::size_t members() const { return static_cast<std::size_t>(state_->levels.intra->size()); }

  std::shared_ptr<GridState> state_;
  BucketView bucket_;
  Reduction reduction_;
  GridPlan plan_;
  std::size_t step_ = 0;       ///< Of plan_, that the intra level is at.
  std::size_t scattered_ = 0;  ///< Chunks whose scatter is done.
  std::unique_ptr<Work> intra_work_;
  std::vector<Exchange> exchanges_;
  /// Shards whose result nobody wants on this member but which it owns all the same, by turns.
  std::vector<std::byte> unwanted_;
  bool finished_ = false;
};

}  // namespace lightcc
