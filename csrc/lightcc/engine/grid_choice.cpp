#include "lightcc/engine/grid_choice.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace lightcc {
namespace {

using Ranks = std::vector<std::int32_t>;

std::string ranks_at(const Ranks& host) {
  return std::to_string(host.size()) + " on the host of rank " + std::to_string(host.front());
}

}  // namespace

GridPosition grid_position(const Grid& grid, std::int32_t rank) {
  GridPosition position{.blocks = grid.blocks.size(), .members = grid.block_size()};
  for (std::size_t block = 0; block < grid.blocks.size(); ++block) {
    const Ranks& ranks = grid.blocks[block];
    const auto found = std::ranges::find(ranks, rank);
    if (found != ranks.end()) {
      position.block = block;
      position.member = static_cast<std::size_t>(found - ranks.begin());
    }
  }
  return position;
}

GridShape shape_of(const Grid& grid, const Ranks& ranks) {
  GridShape shape{.rows = {}, .width = grid.block_size()};
  for (const Ranks& block : grid.blocks) {
    std::vector<std::size_t>& row = shape.rows.emplace_back();
    for (const std::int32_t rank : block) {
      row.push_back(
          static_cast<std::size_t>(std::ranges::lower_bound(ranks, rank) - ranks.begin()));
    }
  }
  return shape;
}

GridChoice choose_grid(const std::vector<std::int32_t>& ranks,
                       const std::vector<int>& host_of,
                       std::optional<bool> wanted,
                       std::int64_t intra_size) {
  GridChoice choice;
  if (wanted == false || ranks.size() < 2) {
    return choice;
  }
  std::map<int, Ranks> hosts;
  for (const std::int32_t rank : ranks) {
    hosts[host_of[static_cast<std::size_t>(rank)]].push_back(rank);
  }
  if (!wanted.has_value() && hosts.size() == 1) {
    return choice;  // Memory is faster than any network.
  }
  const Ranks& first = hosts.begin()->second;
  const bool given = intra_size > 0;
  const std::size_t block = given ? static_cast<std::size_t>(intra_size) : first.size();
  for (const auto& [number, host] : hosts) {
    if (given && host.size() % block != 0) {
      choice.objection =
          "LIGHT_INTRA_SIZE=" + std::to_string(block) + " does not divide the " + ranks_at(host);
      return choice;
    }
    if (!given && host.size() != block) {
      choice.objection = "the hosts have different numbers of ranks: " + ranks_at(first) + ", " +
                         ranks_at(host) + "; LIGHT_INTRA_SIZE can name a size of blocks";
      return choice;
    }
  }
  if (block == 1 || block == ranks.size()) {
    if (wanted == true && ranks.size() == host_of.size()) {
      choice.objection = block == 1 ? "each block has one rank" : "all ranks form one block";
    }
    return choice;
  }
  Grid grid;
  for (const auto& [number, host] : hosts) {
    for (auto begin = host.begin(); begin != host.end();) {
      const auto end = begin + static_cast<std::ptrdiff_t>(block);
      grid.blocks.emplace_back(begin, end);
      begin = end;
    }
  }
  std::ranges::sort(grid.blocks);
  choice.grid = std::move(grid);
  return choice;
}

}  // namespace lightcc
