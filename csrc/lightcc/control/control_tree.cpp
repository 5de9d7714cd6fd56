#include "lightcc/control/control_tree.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace lightcc {

std::vector<int> tree_parents(const std::vector<std::vector<int>>& hosts) {
  std::size_t size = 0;
  for (const std::vector<int>& host : hosts) {
    size += host.size();
  }
  std::vector<int> parents(size, -1);
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    const int leader = hosts[h].front();
    for (const int rank : hosts[h]) {
      parents[static_cast<std::size_t>(rank)] = leader;
    }
    parents[static_cast<std::size_t>(leader)] = h == 0 ? -1 : hosts[(h - 1) / kTreeArity].front();
  }
  return parents;
}

ControlTree::ControlTree(std::vector<int> parents)
    : parents_(std::move(parents)), joined_(parents_.size(), 0) {}

bool ControlTree::is_at_or_below(int rank, int leader) const {
  while (rank >= 0 && rank != leader) {
    rank = parents_[static_cast<std::size_t>(rank)];
  }
  return rank == leader;
}

const std::vector<std::int32_t>& ControlTree::active_below(
    int leader, std::uint32_t process_set, const std::vector<std::int32_t>& members) {
  const auto [entry, is_new] = active_.try_emplace({leader, process_set});
  if (is_new) {
    std::ranges::copy_if(members, std::back_inserter(entry->second), [&](std::int32_t rank) {
      return joined_[static_cast<std::size_t>(rank)] == 0 && is_at_or_below(rank, leader);
    });
  }
  return entry->second;
}

void ControlTree::on_join(int rank) {
  joined_[static_cast<std::size_t>(rank)] = 1;
  active_.clear();
}

void ControlTree::on_all_joined() {
  std::ranges::fill(joined_, 0);
  active_.clear();
}

}  // namespace lightcc
