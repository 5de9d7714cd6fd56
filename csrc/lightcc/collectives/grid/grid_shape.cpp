// (Idea: grid_shape.hpp.)
#include "lightcc/collectives/grid/grid_shape.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lightcc {
namespace {

// Microseconds on Ethernet between hosts (docs/benchmarks.md): what a message takes to arrive, what
// one sent and one received take of a processor, and what 64 KiB take at 2.5 Gb/s.
constexpr std::size_t kLatency = 25;
constexpr std::size_t kMessage = 26;
constexpr std::size_t kData = 208;
constexpr std::size_t kUnit = 1000;  // What all the data counts.

struct Split {
  std::size_t width = 1;
  std::size_t levels = 0;
  // Those of the member that has most: messages to others, and data sent, in thousandths.
  std::size_t messages = 0;
  std::size_t sent = 0;

  std::size_t cost() const {
    return kLatency * levels + kMessage * messages + kData * sent / kUnit;
  }
};

/// What a member of a row of `row_size` sends that owns `owned` of `width` shares.
std::size_t sent_by(std::size_t owned,
                    std::size_t width,
                    std::size_t row_size,
                    const Split& above) {
  return ((width - owned) * kUnit + owned * (row_size - 1) * kUnit + owned * above.sent) / width;
}

/// The cheapest arrangement of `members`; `known` has those that were asked for before.
Split best_split(std::size_t members, std::map<std::size_t, Split>& known) {
  if (members <= 1) {
    return {};
  }
  if (const auto found = known.find(members); found != known.end()) {
    return found->second;
  }
  const Split one_row{.width = members,
                      .levels = 1,
                      .messages = members - 1,
                      .sent = sent_by(1, members, members, {})};
  Split best;
  for (std::size_t width = 2; width <= kMaxRowWidth && width < members; ++width) {
    const std::size_t rows = (members + width - 1) / width;
    const std::size_t last = members - (rows - 1) * width;
    const std::size_t columns = (width + last - 1) / last;  // That a member of the last row is in.
    const Split above = best_split(rows, known);
    const Split split{
        .width = width,
        .levels = 1 + above.levels,
        .messages = std::max(width - 1 + above.messages, last - 1 + columns * above.messages),
        .sent = std::max(sent_by(1, width, width, above), sent_by(columns, width, last, above))};
    if (best.levels == 0 || split.cost() <= best.cost()) {
      best = split;
    }
  }
  if (members <= kMaxRowWidth && (best.levels == 0 || one_row.cost() <= best.cost())) {
    best = one_row;
  }
  known[members] = best;
  return best;
}

std::vector<std::size_t> all_of_them(std::size_t members) {
  std::vector<std::size_t> all(members);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

std::size_t depth_of(std::string_view path) {
  return path.empty() ? 0 : 1 + static_cast<std::size_t>(std::ranges::count(path, '.'));
}

}  // namespace

std::pair<std::size_t, std::size_t> GridShape::position_of(std::size_t member) const {
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto found = std::ranges::find(rows[row], member);
    if (found != rows[row].end()) {
      return {row, static_cast<std::size_t>(found - rows[row].begin())};
    }
  }
  return {};
}

std::vector<std::size_t> GridShape::column(std::size_t share) const {
  std::vector<std::size_t> owners;
  owners.reserve(rows.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    owners.push_back(rows[row][owner(row, share)]);
  }
  return owners;
}

GridShape rows_of(const MembersBySwitch& switches, std::size_t width) {
  GridShape shape{.rows = {}, .width = width};
  for (const auto& members : switches) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i % width == 0) {
        shape.rows.emplace_back();
      }
      shape.rows.back().push_back(members[i]);
    }
  }
  return shape;
}

GridShape rows_of(std::size_t members, std::size_t width) {
  return rows_of({all_of_them(members)}, width);
}

std::string_view outer_switches(std::string_view path, std::size_t depth) {
  std::size_t end = 0;  // One behind the dot.
  for (; depth > 0; --depth) {
    const std::size_t dot = path.find('.', end);
    if (dot == std::string_view::npos) {
      return path;
    }
    end = dot + 1;
  }
  return path.substr(0, end == 0 ? 0 : end - 1);
}

MembersBySwitch by_switch(const std::vector<std::string>& paths) {
  std::size_t depth = 0;
  for (const std::string& path : paths) {
    depth = std::max(depth, depth_of(path));
  }
  for (; depth > 0; --depth) {
    MembersBySwitch switches;
    std::map<std::string_view, std::size_t> numbers;
    for (std::size_t member = 0; member < paths.size(); ++member) {
      const auto found = numbers.emplace(outer_switches(paths[member], depth), switches.size());
      if (found.second) {
        switches.emplace_back();
      }
      switches[found.first->second].push_back(member);
    }
    if (switches.size() < paths.size()) {
      return switches;
    }
  }
  return {all_of_them(paths.size())};
}

std::size_t max_members(const MembersBySwitch& switches) {
  std::size_t maximum = 0;
  for (const auto& members : switches) {
    maximum = std::max(maximum, members.size());
  }
  return maximum;
}

std::size_t grid_width(std::size_t members) {
  std::map<std::size_t, Split> known;
  return best_split(members, known).width;
}

std::vector<std::size_t> grid_widths(std::size_t members, std::size_t max_width) {
  std::vector<std::size_t> widths;
  while (members > 1) {
    widths.push_back(grid_row(members, max_width).width);
    members = (members + widths.back() - 1) / widths.back();
  }
  return widths;
}

GridRow grid_row(std::size_t members, std::size_t max_width) {
  GridRow row;
  std::size_t rows = members;
  while (rows > 1) {
    const std::size_t width = grid_width(rows);
    if (!row.order.empty() && std::min(row.width * width, members) > max_width) {
      break;
    }
    row.width = std::min(row.width * width, members);
    row.order.push_back(width);
    rows = (rows + width - 1) / width;
  }
  return row;
}

std::vector<GridTier> grid_tiers(std::vector<std::string> paths) {
  std::vector<GridTier> tiers;
  do {
    MembersBySwitch switches = by_switch(paths);
    std::vector<std::string> outer;
    for (const auto& members : switches) {
      outer.push_back(members.empty() ? std::string() : paths[members.front()]);
    }
    paths = std::move(outer);
    std::vector<std::size_t> widths = grid_widths(max_members(switches));
    tiers.push_back({.switches = std::move(switches), .widths = std::move(widths)});
  } while (paths.size() > 1);
  return tiers;
}

}  // namespace lightcc
