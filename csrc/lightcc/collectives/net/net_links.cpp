// (Idea: net_links.hpp.)
#include "lightcc/collectives/net/net_links.hpp"

#include <cstddef>
#include <memory>
#include <span>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

std::span<std::byte> NetLinks::scratch(std::size_t bytes) {
  const std::size_t lines = bytes / sizeof(Line) + (bytes % sizeof(Line) != 0 ? 1 : 0);
  if (lines > scratch_lines_) {
    scratch_lines_ = 0;
    scratch_.reset();
    scratch_ = std::make_unique_for_overwrite<Line[]>(lines);  // NOLINT: see the declaration
    scratch_lines_ = lines;
  }
  return std::as_writable_bytes(std::span(scratch_.get(), lines)).first(bytes);
}

NetWork::~NetWork() {
  if (phase_ != Phase::kFinished) {
    links_->fail({ErrorCode::kShutDown, "an earlier operation of this group was abandoned"});
  }
}

Result<Progress> NetWork::advance() {
  if (!links_->status().ok()) {
    return links_->status();
  }
  if (phase_ == Phase::kFinished) {
    return Progress::kDone;
  }
  if (phase_ == Phase::kNew) {
    phase_ = Phase::kRunning;
    if (const Status begun = begin(); !begun.ok()) {
      links_->fail(begun);
      return begun;
    }
  }
  auto progress = step();
  if (!progress.ok()) {
    links_->fail(progress.status());
  } else if (progress.value() == Progress::kDone) {
    phase_ = Phase::kFinished;
  }
  return progress;
}

}  // namespace lightcc
