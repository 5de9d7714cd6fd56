// What reduce_scatter and allgather share: every rank has a part of its own size, and the pieces of
// a chunk that belong to the owners of one share pass between blocks together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
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
  /// Rank i, in the order of the flat group, has counts[i] elements of `tensors`. `staged`: what
  /// passes between blocks has a place here.
  GridPartStages(const GridState& state,
                 const std::vector<TensorSpan>& tensors,
                 std::size_t element_bytes,
                 const std::vector<std::size_t>& counts,
                 std::size_t min_piece_bytes,
                 bool staged)
      : GridPartStages(state,
                       BucketView(tensors, element_bytes, BucketView::Joining::kNothing),
                       plan_of(state, counts, element_bytes, min_piece_bytes),
                       staged) {}

  /// How many elements of `chunk` pass with the own share `index`, by block; none at all: empty.
  std::vector<std::size_t> column(std::size_t chunk, std::size_t index) const {
    std::vector<std::size_t> counts;
    counts.reserve(state().shape.rows.size());
    std::size_t total = 0;
    for (std::size_t block = 0; block < state().shape.rows.size(); ++block) {
      counts.push_back(part(chunk, block, state().first_share() + index).count);
      total += counts.back();
    }
    return total != 0 ? counts : std::vector<std::size_t>();
  }
  /// Calls visit(piece, block, stage) for what passes between blocks with `share`, in the order of
  /// the blocks. `stage` is its place here, null where there is none: of others' shares, or if not
  /// staged. It is free again when the chunk that is `lead` after this one begins.
  template <typename Visit>
  void for_each_piece(std::size_t chunk, std::size_t share, Visit visit) const {
    std::byte* stage = nullptr;
    if (staging_ != nullptr && owner_of(share) == state().me()) {
      const std::size_t slot =
          chunk % schedule().lead() * state().own_shares() + share - state().first_share();
      stage = staging_.get() + slot * state().shape.rows.size() * plan_.piece_bytes();
    }
    for (std::size_t block = 0; block < state().shape.rows.size(); ++block) {
      bucket_.for_each_piece(
          part(chunk, block, share), [&](const TensorSpan& piece, std::size_t /*offset*/) {
            visit(piece, block, stage);
            stage += stage != nullptr ? piece.count * bucket_.element_bytes() : 0;
          });
    }
  }
  std::size_t owner_of(std::size_t share) const {
    return state().shape.owner(state().block(), share);
  }

 private:
  GridPartStages(const GridState& state, BucketView bucket, SharePlan plan, bool staged)
      : GridStages(state, ChunkSchedule(plan.chunks(), state.lead())),
        bucket_(std::move(bucket)),
        plan_(std::move(plan)) {
    if (staged) {
      const std::size_t bytes =
          schedule().lead() * state.own_shares() * state.shape.rows.size() * plan_.piece_bytes();
      staging_ = std::make_unique_for_overwrite<std::byte[]>(bytes);  // NOLINT: as declared
    }
  }

  /// What passes between blocks with `share` of the owner in `block`: all of its part, or nothing,
  /// as a member that owns several shares sends its part with the first one.
  ElementRange part(std::size_t chunk, std::size_t block, std::size_t share) const {
    const std::size_t member = state().shape.owner(block, share);
    return state().shape.first_share(block, member) == share
               ? plan_.piece(chunk, state().flat(block, member))
               : ElementRange();
  }
  static SharePlan plan_of(const GridState& state,
                           const std::vector<std::size_t>& counts,
                           std::size_t element_bytes,
                           std::size_t min_piece_bytes) {
    std::size_t total = 0;
    std::size_t largest = 0;
    for (const std::size_t count : counts) {
      total += count * element_bytes;
      largest = std::max(largest, count * element_bytes);
    }
    const std::size_t piece =
        std::max(grid_piece_bytes(counts, element_bytes, state.chunk_bytes(total)),
                 std::min(largest, min_piece_bytes));
    return SharePlan::by_counts(counts, element_bytes, piece);
  }

  BucketView bucket_;
  SharePlan plan_;
  std::unique_ptr<std::byte[]> staging_;  // NOLINT(modernize-avoid-c-arrays): not to be initialised
};

}  // namespace lightcc
