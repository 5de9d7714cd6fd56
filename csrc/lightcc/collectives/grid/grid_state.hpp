// What the Works of a GridGroup share: the levels, and whether they can still be used.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/all_works.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/group.hpp"

namespace lightcc {

/// Shared by a group and its Works, so that either may go first.
struct GridState {
  GridLevels levels;
  GridGroupOptions options;
  Status status;    ///< Ok while the levels can be used.
  GridShape shape;  ///< The levels', or of neighbours in blocks that are alike.

  /// Ends both levels for the reason of `why` (the first one stays). No Work of theirs is left.
  void fail(const Status& why);

  // The grid, while `status` is ok.
  /// How many this member's block has.
  std::size_t members() const { return static_cast<std::size_t>(levels.intra->size()); }
  std::size_t me() const { return static_cast<std::size_t>(levels.intra->rank()); }
  std::size_t blocks() const { return static_cast<std::size_t>(levels.inter.front()->size()); }
  std::size_t block() const { return static_cast<std::size_t>(levels.inter.front()->rank()); }
  /// The flat group's number of `member` of `block`.
  std::size_t flat(std::size_t block, std::size_t member) const {
    return shape.rows[block][member];
  }
  // The shares of this member: the first one, and how many.
  std::size_t first_share() const { return shape.first_share(block(), me()); }
  std::size_t own_shares() const { return 1 + levels.other_columns.size(); }
  /// Runs start(index, column) for each own share, the first one's column being `first`. Null is
  /// nothing to do, for a share or for all of them.
  template <typename Start>
  std::unique_ptr<Work> on_columns(Group& first, Start start) const {
    std::vector<std::unique_ptr<Work>> works;
    for (std::size_t index = 0; index < own_shares(); ++index) {
      Group& column = index == 0 ? first : *levels.other_columns[index - 1];
      if (std::unique_ptr<Work> work = start(index, column); work != nullptr) {
        works.push_back(std::move(work));
      }
    }
    return all_of(std::move(works));
  }
  /// What a chunk of the pipeline has, where the data has `bytes` in all.
  std::size_t chunk_bytes(std::size_t bytes) const;
  /// The pipeline's: while every inter group works on a chunk, one more is ready to follow.
  std::size_t lead() const { return levels.inter.size() + 1; }
};

/// Whether the postscale is applied in stage 1: a block's sum of float16 could overflow where the
/// average of all does not.
bool scales_early(const Reduction& reduction);
/// What stage 1 and stage 2 do of `reduction`.
Reduction within_blocks(const Reduction& reduction);
Reduction between_blocks(const Reduction& reduction);

}  // namespace lightcc
