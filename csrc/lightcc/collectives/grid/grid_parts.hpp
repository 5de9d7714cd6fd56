// What reduce_scatter and allgather share: every rank has a part of its own size, and the pieces of
// a chunk that belong to the owners of one share pass between blocks together.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/grid/grid_plan.hpp"
#include "lightcc/collectives/grid/grid_stages.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/share_plan.hpp"

namespace lightcc {

class GridPartStages : public GridStages {
 protected:
  /// Rank i, in the order of the flat group, has counts[i] elements.
  GridPartStages(const GridState& state,
                 const std::vector<std::size_t>& counts,
                 std::size_t element_bytes)
      : GridPartStages(state, plan_of(state, counts, element_bytes)) {}

  /// The elements of `chunk` that `member` of `block` has, counted from the first of all.
  ElementRange piece(std::size_t chunk, std::size_t block, std::size_t member) const {
    return plan_.piece(chunk, state().flat(block, member));
  }
  /// Elements of the own part that lie before its piece of `chunk`.
  std::size_t own_offset(std::size_t chunk) const {
    const std::size_t own = state().flat(state().block(), state().me());
    return plan_.piece(chunk, own).first - plan_.piece(0, own).first;
  }
  /// What passes between blocks with `share` of the owner in `block`: all of its part, or nothing,
  /// as a member that owns several shares sends its part with the first one.
  ElementRange part(std::size_t chunk, std::size_t block, std::size_t share) const {
    const std::size_t member = state().shape.owner(block, share);
    return state().shape.first_share(block, member) == share ? piece(chunk, block, member)
                                                             : ElementRange();
  }
  /// How many elements of `chunk` pass with the own share `index`, by block; none at all: empty.
  std::vector<std::size_t> column(std::size_t chunk, std::size_t index) const {
    std::vector<std::size_t> counts;
    counts.reserve(state().shape.rows());
    std::size_t total = 0;
    for (std::size_t block = 0; block < state().shape.rows(); ++block) {
      counts.push_back(part(chunk, block, state().first_share() + index).count);
      total += counts.back();
    }
    return total != 0 ? counts : std::vector<std::size_t>();
  }
  /// Where the elements of column(chunk, index) lie, one after another. A chunk's place is free
  /// again when the chunk that is `lead` after it begins.
  std::byte* stage(std::size_t chunk, std::size_t index) {
    const std::size_t slot = chunk % schedule().lead() * state().own_shares() + index;
    return staging_.data() + slot * state().shape.rows() * plan_.piece_bytes();
  }
  /// The same for all own shares.
  std::vector<std::byte*> stages(std::size_t chunk) {
    std::vector<std::byte*> stages(state().own_shares());
    for (std::size_t index = 0; index < stages.size(); ++index) {
      stages[index] = stage(chunk, index);
    }
    return stages;
  }
  /// Calls visit(share, elements) for what the members of the own block pass on or are
  /// passed, in their order.
  template <typename Visit>
  void for_each_part(std::size_t chunk, Visit visit) const {
    for (std::size_t share = 0; share < state().shape.width; ++share) {
      for (std::size_t block = 0; block < state().shape.rows(); ++block) {
        visit(share, part(chunk, block, share));
      }
    }
  }
  std::size_t owner_of(std::size_t share) const {
    return state().shape.owner(state().block(), share);
  }

 private:
  GridPartStages(const GridState& state, SharePlan plan)
      : GridStages(state, ChunkSchedule(plan.chunks(), state.lead())),
        plan_(std::move(plan)),
        staging_(schedule().lead() * state.own_shares() * state.shape.rows() *
                 plan_.piece_bytes()) {}

  static SharePlan plan_of(const GridState& state,
                           const std::vector<std::size_t>& counts,
                           std::size_t element_bytes) {
    std::size_t total = 0;
    for (const std::size_t count : counts) {
      total += count * element_bytes;
    }
    const std::size_t piece = grid_piece_bytes(counts, element_bytes, state.chunk_bytes(total));
    return SharePlan::by_counts(counts, element_bytes, piece);
  }

  SharePlan plan_;
  std::vector<std::byte> staging_;
};

}  // namespace lightcc
