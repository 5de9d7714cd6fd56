// How the members of a group are arranged in levels, and who owns what on each: pure functions of
// the number of members and the switches above them, the same on all of them.
//
// One level of n members is rows of `width` neighbours, of which the last may be shorter. A level's
// data is cut into `width` shares. In every row each share has one owner; a member of a shorter row
// owns several, one after another. The owners of a share in all rows form its column, which is a
// group in the order of the rows and is arranged in the same way.
//
// Where members tell their switches, neighbours are those of one innermost switch, and each switch
// has rows of its own. Columns go on within the switches until each has one member left, and then
// within the next ones out. The levels within the switches of one depth are a tier. So
//
//   all-reduce       the row reduce-scatters, each share's column all-reduces, the row all-gathers
//   bytes sent       2 (n-1) N by all members together, as little as can be, for any n and widths;
//                    2 (s-1) N of them between s switches
//   order            members of a row in order, then rows in order, for every element alike
//
// What the levels are is thus a function of n and switches alone: bits do not depend on sizes,
// chunks or algorithms. Narrow levels have few messages, and wide ones overlap better. So large
// operations take several levels as one, whose members combine in the order that these levels have.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lightcc/base/export.hpp"

namespace lightcc {

/// Members up to which contributions meet at one owner and are combined in member order.
inline constexpr std::size_t kMaxRowWidth = 16;

/// One level.
struct GridShape {
  /// The numbers of each row's members in the group; none is empty or longer than `width`.
  std::vector<std::vector<std::size_t>> rows;
  std::size_t width = 1;  ///< Shares.

  std::size_t members_of(std::size_t row) const { return rows[row].size(); }
  /// The row of a member of the group, and its position there.
  std::pair<std::size_t, std::size_t> position_of(std::size_t member) const;
  /// The first share that `member` of `row` owns. It owns those up to that of the next member.
  std::size_t first_share(std::size_t row, std::size_t member) const {
    return member * width / members_of(row);
  }
  std::size_t shares_of(std::size_t row, std::size_t member) const {
    return first_share(row, member + 1) - first_share(row, member);
  }
  std::size_t owner(std::size_t row, std::size_t share) const {
    return ((share + 1) * members_of(row) - 1) / width;
  }
  /// The numbers of the owners of `share`, by row.
  std::vector<std::size_t> column(std::size_t share) const;
};

using MembersBySwitch = std::vector<std::vector<std::size_t>>;

/// Rows of `width` neighbours in each switch, of which the last may be shorter.
LIGHTCC_EXPORT GridShape rows_of(const MembersBySwitch& switches, std::size_t width);
LIGHTCC_EXPORT GridShape rows_of(std::size_t members, std::size_t width);

/// Members by the innermost switches of which one has several, in order of first appearance; all
/// together where no two share one. `paths` has the switches above each member from the outermost
/// in, such as "zone-a.rack7"; empty: not told.
LIGHTCC_EXPORT MembersBySwitch by_switch(const std::vector<std::string>& paths);
/// The first `depth` switches of a path; all, if there are no more.
LIGHTCC_EXPORT std::string_view outer_switches(std::string_view path, std::size_t depth);
/// How many the largest has: levels are those of as many members.
std::size_t max_members(const MembersBySwitch& switches);

/// The width of the lowest level of `members` members; `members` itself where they form one row,
/// which has at most kMaxRowWidth. Columns are arranged by the same function of their rows.
///
/// It is the width for which an all-reduce of 64 KiB takes least by a model: each level costs one
/// latency, and the processor time of a message to and from each other member of a row. A member
/// that owns several shares takes part in as many columns. The model's figures are constants.
LIGHTCC_EXPORT std::size_t grid_width(std::size_t members);

/// The widths of all levels from the lowest up; empty for one member. With `max_width`, levels that
/// together have up to so many members are one.
LIGHTCC_EXPORT std::vector<std::size_t> grid_widths(std::size_t members, std::size_t max_width = 1);

/// The `max_width` of operations of more than kNarrowBytes. Up to there messages cost more than
/// what the overlap of a wide row saves.
inline constexpr std::size_t kWideRow = 7;
inline constexpr std::size_t kNarrowBytes = std::size_t{256} << 10;

/// The lowest of these levels.
struct GridRow {
  std::size_t width = 1;
  std::vector<std::size_t> order;  ///< The widths of the narrow levels that it is.
};
LIGHTCC_EXPORT GridRow grid_row(std::size_t members, std::size_t max_width);

/// The levels within the switches of one depth.
struct GridTier {
  MembersBySwitch switches;         ///< Numbers among the switches of the tier below, or members.
  std::vector<std::size_t> widths;  ///< From the lowest level up.
};
/// From the innermost switches out. The last one has one switch: all that there is.
LIGHTCC_EXPORT std::vector<GridTier> grid_tiers(std::vector<std::string> paths);

}  // namespace lightcc
