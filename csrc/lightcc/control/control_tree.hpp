// Who reports to whom: ranks to the leader of their host, leaders to the leader of another host.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "lightcc/control/process_set_table.hpp"

namespace lightcc {

/// Leaders have at most this many children in the tree over hosts.
inline constexpr int kTreeArity = 8;

/// Each rank's parent in the tree, by rank; -1 for rank 0. `hosts`: the ranks of each host, its
/// leader first. Host h's parent is host (h - 1) / kTreeArity.
std::vector<int> tree_parents(const std::vector<std::vector<int>>& hosts);

/// Which ranks a leader speaks for. Ranks that have joined ask for nothing, so it does not speak
/// for them. Thread: one at a time.
class ControlTree {
 public:
  explicit ControlTree(std::vector<int> parents);

  /// Members of a process set at or below `leader` that have not joined, ascending. Valid until the
  /// next call of another method. `members`: the set's ranks, ascending.
  const std::vector<std::int32_t>& active_below(int leader,
                                                std::uint32_t process_set,
                                                const std::vector<std::int32_t>& members);
  bool has_rank(std::uint32_t rank) const { return rank < parents_.size(); }

  void on_join(int rank);
  void on_all_joined();
  void on_process_set_changed() { active_.clear(); }

 private:
  bool is_at_or_below(int rank, int leader) const;

  std::vector<int> parents_;
  std::vector<std::uint8_t> joined_;  // By rank.
  std::map<std::pair<int, std::uint32_t>, std::vector<std::int32_t>> active_;
};

}  // namespace lightcc
