// The pipeline of a two-level operation. (Essay: grid_group.cpp.)
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid/grid_stages.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// Runs the stages of all chunks, each level in its order. Failed, or dropped before its end, it
/// ends both levels.
class GridWork final : public Work {
 public:
  /// Over the levels of `state`, which outlives `stages`.
  GridWork(std::shared_ptr<GridState> state, std::unique_ptr<PipelineStages> stages);
  /// Where blocks have one member: only `exchange`, which outlives the Work, joins them.
  GridWork(Group& exchange, std::unique_ptr<PipelineStages> stages);
  GridWork(const GridWork&) = delete;
  GridWork& operator=(const GridWork&) = delete;
  ~GridWork() override;

  Result<Progress> advance() override;

 private:
  /// One of the inter groups: chunks c, c + inter.size(), c + 2 * inter.size(), ... go through it.
  struct Exchange {
    Group* group = nullptr;
    std::size_t chunk = 0;  ///< That it works on or waits for.
    std::unique_ptr<Work> work;
  };

  void add_exchange(Group& group);
  Result<bool> advance_intra();
  Result<bool> advance_exchange(std::size_t index);
  void drop_works();
  bool is_exchanged(std::size_t chunk) const {
    return exchanges_[chunk % exchanges_.size()].chunk > chunk;
  }

  std::shared_ptr<GridState> state_;  ///< Null: there are no levels to end.
  std::unique_ptr<PipelineStages> stages_;
  std::size_t step_ = 0;       ///< Where the intra level is in the schedule.
  std::size_t scattered_ = 0;  ///< Chunks whose scatter is done.
  std::unique_ptr<Work> intra_work_;
  std::vector<Exchange> exchanges_;
  bool finished_ = false;
};

}  // namespace lightcc
