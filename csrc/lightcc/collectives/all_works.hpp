// Works that run side by side, as one.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// Done when all are.
class AllWorks final : public Work {
 public:
  explicit AllWorks(std::vector<std::unique_ptr<Work>> works) : works_(std::move(works)) {}

  Result<Progress> advance() override {
    bool moved = false;
    for (auto work = works_.begin(); work != works_.end();) {
      LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, (*work)->advance());
      moved = moved || progress != Progress::kIdle;
      work = progress == Progress::kDone ? works_.erase(work) : work + 1;
    }
    if (works_.empty()) {
      return Progress::kDone;
    }
    return moved ? Progress::kMoved : Progress::kIdle;
  }

 private:
  std::vector<std::unique_ptr<Work>> works_;
};

/// None of `works` is null. Null: there are none.
inline std::unique_ptr<Work> all_of(std::vector<std::unique_ptr<Work>> works) {
  if (works.size() > 1) {
    return std::make_unique<AllWorks>(std::move(works));
  }
  return works.empty() ? nullptr : std::move(works.front());
}

}  // namespace lightcc
