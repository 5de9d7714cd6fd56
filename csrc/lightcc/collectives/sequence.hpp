// Several operations as one, such as a copy and the collective after it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// Several operations, each started when the one before is done.
class Sequence final : public Work {
 public:
  /// Starts one; null: it is done.
  using Start = std::function<Result<std::unique_ptr<Work>>()>;

  explicit Sequence(std::vector<Start> starts) : starts_(std::move(starts)) {}

  Result<Progress> advance() override {
    while (next_ < starts_.size()) {
      if (work_ == nullptr) {
        LIGHTCC_ASSIGN_OR_RETURN(work_, starts_[next_]());
      }
      if (work_ != nullptr) {
        LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, work_->advance());
        if (progress != Progress::kDone) {
          return progress;
        }
        work_.reset();
        ++next_;
        return next_ < starts_.size() ? Progress::kMoved : Progress::kDone;
      }
      ++next_;
    }
    return Progress::kDone;
  }

 private:
  std::vector<Start> starts_;
  std::size_t next_ = 0;
  std::unique_ptr<Work> work_;
};

}  // namespace lightcc
