// The launches of a step of top-k compression, which are made again and again: none of the steps
// ends before finish(), so each does the same. They are those of TopkSite::compress().
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
#include "lightcc_cuda/staging/pinned_pool.hpp"
#include "lightcc_cuda/staging/topk_site.hpp"

namespace lightcc::cuda {

/// Nobody else uses the site meanwhile. Thread: the site's. Errors of all methods: kSystem.
class TopkTrial {
 public:
  /// Makes a trial of a shard that no step has changed since it was loaded, without momentum
  /// correction. `site` and `stream` outlive it.
  static Result<std::unique_ptr<TopkTrial>> make(TopkSite& site,
                                                 const SiteStep& step,
                                                 StreamHandle* stream);
  TopkTrial(const TopkTrial&) = delete;
  TopkTrial& operator=(const TopkTrial&) = delete;
  ~TopkTrial();

  /// All launches of a step.
  Status launch_step() const;

  // The pass alone, where the threshold is known. It draws tiles and counts their hits, so each
  // launch needs words of its own, which were cleared before.

  /// Makes room for `count` passes.
  Status prepare_passes(std::size_t count);
  /// Clears the words of all of them.
  Status begin_passes() const;
  Status launch_pass(std::size_t index) const;
  /// The launches that a step has behind its pass.
  Status end_pass(std::size_t index) const;

  /// What a step writes: its lists, and the next residual.
  Status spoil(unsigned char value) const;
  /// Copies the list and what became of the shard to the host, and commits the step. Blocks.
  Status finish();

 private:
  struct Table;

  TopkTrial(TopkSite& site, StreamHandle* stream, std::unique_ptr<Table> table);
  TopkArguments pass_arguments(std::size_t index) const;
  Status launch(const char* kernel, bool of_elements, u64 blocks, const TopkArguments& of) const;

  TopkSite& site_;
  StreamHandle* stream_;
  std::unique_ptr<Table> table_;
  std::optional<DeviceMemory> passes_;
  std::size_t num_passes_ = 0;
};

}  // namespace lightcc::cuda
