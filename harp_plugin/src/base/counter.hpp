// A counter, and what is said of it: every struct of counters has a table of them, from which it is
// summed up, logged, and shown by harp-stat. Whoever adds a counter to a struct is told by an
// assertion below its table to add a line there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace harp {

/// A counter of `Stats` and what others are told about it.
template <typename Stats>
struct Counter {
  std::uint64_t Stats::* value;
  std::string_view name;
  std::string_view unit;
  std::string_view help;
};

/// Adds the counters of `one` to those of `sum`.
template <typename Stats, std::size_t Count>
void add_counters(const std::array<Counter<Stats>, Count>& table, const Stats& one, Stats& sum) {
  for (const Counter<Stats>& counter : table) {
    sum.*counter.value += one.*counter.value;
  }
}

}  // namespace harp
