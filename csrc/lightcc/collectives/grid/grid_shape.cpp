// (Idea: grid_shape.hpp.)
#include "lightcc/collectives/grid/grid_shape.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
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

}  // namespace

std::vector<std::size_t> GridShape::column(std::size_t share) const {
  std::vector<std::size_t> owners;
  owners.reserve(rows());
  for (std::size_t row = 0; row < rows(); ++row) {
    owners.push_back(row * width + owner(row, share));
  }
  return owners;
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

}  // namespace lightcc
