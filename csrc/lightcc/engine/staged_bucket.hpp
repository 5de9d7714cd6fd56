// A bucket of another kind of memory: its tensors are copied to the host, run on the host's plane,
// and the results are copied back.
#pragma once

#include <memory>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/engine/staging.hpp"

namespace lightcc {

/// Bits, names and what compression keeps back are those of the same bucket in host memory.
class StagedWork final : public Work {
 public:
  /// `bucket` and `staging` outlive the Work, as does what `host`, the host's site, refers to.
  StagedWork(Bucket& bucket, const BucketSite& host, Staging& staging);

  Result<Progress> advance() override;
  /// Whether it waits for a copy, of which nobody tells.
  bool is_copying() const { return copying_ != nullptr; }

 private:
  void begin_inputs();
  Status begin_collective();
  Status begin_outputs();

  enum class Stage : std::uint8_t { kInputs, kCollective, kOutputs, kDone };

  Bucket& bucket_;
  BucketSite host_;
  Staging& staging_;
  std::vector<InFlight> operations_;  // Of the copies.
  Bucket copies_;
  std::shared_ptr<StagedTensors> tensors_;
  Stage stage_ = Stage::kInputs;
  std::unique_ptr<Work> collective_;  // Goes before what it works on.
  std::unique_ptr<Work> copying_;
};

}  // namespace lightcc
