// Leveled log lines to standard error, one write() per line: "[lightcc 3 WARN] text".
//
// The first function that decides which error it is logs or returns it, never both. Nothing on a
// hot path logs. Levels are Horovod's: trace, debug, info, warning, error, fatal (here: log less).
#pragma once

#include <cstdint>
#include <string>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"

namespace lightcc {

enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

/// Process-wide; set once when a world is made. Thread: any.
void configure_log(LogLevel level, bool hide_time, int rank);
LIGHTCC_EXPORT bool log_enabled(LogLevel level);
LIGHTCC_EXPORT [[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char* format, ...);

/// Sends lines to `sink` instead of standard error (tests); null restores. `sink` must be thread
/// safe.
void set_log_sink(void (*sink)(LogLevel level, const std::string& line));

}  // namespace lightcc

#define LIGHTCC_LOG(level, ...)                \
  do {                                         \
    if (::lightcc::log_enabled(level)) {       \
      ::lightcc::log_line(level, __VA_ARGS__); \
    }                                          \
  } while (false)
