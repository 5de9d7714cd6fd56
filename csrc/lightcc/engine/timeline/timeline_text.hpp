// What events of all rows of a timeline have in common, as text (timeline_encoder.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lightcc {

/// `text` as a JSON string, quotes included. What is not UTF-8 becomes "?".
std::string json_string(std::string_view text);
/// Horovod's times are microseconds; the fraction makes short slices visible.
std::string micros(std::int64_t ns);

// Each appends an event to `out`, with a comma before it. `arguments` stand between braces there.

void add_metadata(std::string_view what,
                  std::uint32_t pid,
                  std::string_view arguments,
                  std::string& out);
/// Names a row. Events have no thread, as Horovod's; Perfetto then takes the process' number for
/// it.
void add_names(std::uint32_t pid,
               std::string_view process,
               std::string_view thread,
               std::string& out);
/// What concerns the rank and no row.
void add_mark(std::string_view name,
              std::int64_t at_ns,
              std::string_view arguments,
              std::string& out);

}  // namespace lightcc
