// Which process sets exist, by number. Changed only by commands of the sequencer, in their order,
// so the table is the same on every rank at the same point of the sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace lightcc {

class ProcessSetTable {
 public:
  /// Ranks by number. Copies of a table share them.
  using Sets = std::map<std::uint32_t, std::shared_ptr<const std::vector<std::int32_t>>>;

  /// Starts with set 0: all ranks.
  explicit ProcessSetTable(int world_size) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(world_size));
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<std::int32_t>(i);
    }
    add(0, std::move(all));
  }

  /// Null when there is no such set. Ascending world ranks.
  const std::vector<std::int32_t>* find(std::uint32_t id) const {
    const auto found = sets_.find(id);
    return found == sets_.end() ? nullptr : found->second.get();
  }
  /// The same, for who keeps them beyond the set's life. Null when there is no such set.
  std::shared_ptr<const std::vector<std::int32_t>> share(std::uint32_t id) const {
    const auto found = sets_.find(id);
    return found == sets_.end() ? nullptr : found->second;
  }
  /// Index of `rank` among the members of `id`, or -1.
  int member_index(std::uint32_t id, std::int32_t rank) const {
    const auto* ranks = find(id);
    if (ranks == nullptr) {
      return -1;
    }
    const auto position = std::ranges::lower_bound(*ranks, rank);
    return position != ranks->end() && *position == rank
               ? static_cast<int>(position - ranks->begin())
               : -1;
  }
  bool contains_ranks(const std::vector<std::int32_t>& ranks) const {
    return std::ranges::any_of(sets_, [&](const auto& entry) { return *entry.second == ranks; });
  }
  /// The smallest number that is free: numbers of removed sets are used again.
  std::uint32_t next_id() const {
    std::uint32_t id = 0;
    while (sets_.contains(id)) {
      ++id;
    }
    return id;
  }
  void add(std::uint32_t id, std::vector<std::int32_t> ranks) {
    sets_[id] = std::make_shared<const std::vector<std::int32_t>>(std::move(ranks));
  }
  void remove(std::uint32_t id) { sets_.erase(id); }
  const Sets& sets() const { return sets_; }

 private:
  Sets sets_;
};

}  // namespace lightcc
