#include "lightcc/engine/unfinished.hpp"

namespace lightcc {

void UnfinishedBuckets::add(Entry entry) {
  const std::uint64_t before = added_.load(std::memory_order_relaxed);
  entries_.emplace_back(before, std::move(entry));
  added_.store(before + 1, std::memory_order_release);
}

Status UnfinishedBuckets::advance(std::vector<Entry>& finished) {
  Status failed;
  for (auto& entry : entries_) {
    const Result<Progress> progress = entry.second.work->advance();
    if (!progress.ok()) {
      failed = progress.status();
      break;
    }
    if (*progress == Progress::kDone) {
      finished.push_back(std::move(entry.second));
    }
  }
  if (!finished.empty()) {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.work == nullptr; });
    finished_.store(
        entries_.empty() ? added_.load(std::memory_order_relaxed) : entries_.front().first,
        std::memory_order_release);
  }
  return failed;
}

void UnfinishedBuckets::drop_all() {
  entries_.clear();
}

}  // namespace lightcc
