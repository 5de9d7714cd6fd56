// What the stages of each two-level operation are; GridWork runs them. (Essay: grid_group.cpp.)
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/chunk_schedule.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// Starts the parts of one operation, chunk by chunk.
///
/// A part that is null is nothing to do: on all members of the block alike (scatter, gather), or on
/// all members with this one's position in their blocks (exchange).
class PipelineStages {
 public:
  explicit PipelineStages(const ChunkSchedule& schedule) : schedule_(schedule) {}
  PipelineStages(const PipelineStages&) = delete;
  PipelineStages& operator=(const PipelineStages&) = delete;
  virtual ~PipelineStages() = default;

  const ChunkSchedule& schedule() const { return schedule_; }
  /// Stage 1, within the block.
  virtual std::unique_ptr<Work> start_scatter(std::size_t chunk) = 0;
  /// Stage 2, between blocks, over one of the inter groups.
  virtual std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group) = 0;
  /// Stage 3, within the block.
  virtual std::unique_ptr<Work> start_gather(std::size_t chunk) = 0;

 private:
  ChunkSchedule schedule_;
};

/// The same over a grid, whose `state` outlives it.
class GridStages : public PipelineStages {
 public:
  GridStages(const GridState& state, const ChunkSchedule& schedule)
      : PipelineStages(schedule), state_(state) {}

 protected:
  const GridState& state() const { return state_; }
  Group& intra() const { return *state_.levels.intra; }

 private:
  const GridState& state_;
};

// By file; arguments as in Group, and checked.

/// grid_allreduce.cpp
std::unique_ptr<GridStages> make_allreduce_stages(const GridState& state,
                                                  BucketView bucket,
                                                  const Reduction& reduction);
/// grid_reduce_scatter.cpp
std::unique_ptr<GridStages> make_reduce_scatter_stages(const GridState& state,
                                                       const std::vector<TensorSpan>& tensors,
                                                       const std::vector<std::size_t>& counts,
                                                       const Reduction& reduction);
/// grid_gather.cpp: elements are bytes.
std::unique_ptr<GridStages> make_allgather_stages(const GridState& state,
                                                  const std::vector<TensorSpan>& tensors,
                                                  const std::vector<std::size_t>& bytes);
/// grid_broadcast.cpp
std::unique_ptr<GridStages> make_broadcast_stages(const GridState& state,
                                                  std::byte* data,
                                                  std::size_t bytes,
                                                  std::size_t root);

}  // namespace lightcc
