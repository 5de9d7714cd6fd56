// Log lines: formatted on the stack of the thread that logs, written with one write().
//
// The settings are independent atomics: a line that is logged while they change may mix old and new
// ones, which harms nobody. A line is at most kLineBytes long and holds no control characters, so
// that text which came from elsewhere (a peer's message, an environment value) cannot forge lines.
// A line that standard error does not take at once is lost rather than waited for.
#include "lightcc/base/log.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <string_view>

namespace lightcc {
namespace {

using Sink = void (*)(LogLevel level, const std::string& line);

constexpr std::size_t kLineBytes = 4096;
constexpr std::string_view kCut = "...";

std::atomic<LogLevel> min_level{LogLevel::kWarning};
std::atomic<bool> without_time{false};
std::atomic<int> own_rank{-1};  // -1: no world yet.
std::atomic<Sink> current_sink{nullptr};

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return "TRACE";
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARN";
    case LogLevel::kError:
      return "ERROR";
    case LogLevel::kFatal:
      return "FATAL";
  }
  return "?";
}

/// "2025-01-31 12:34:56.789 ", local time.
std::string time_prefix() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(
                                now - std::chrono::system_clock::from_time_t(seconds))
                                .count();
  std::tm local{};
  std::array<char, 32> date{};
  if (localtime_r(&seconds, &local) == nullptr ||
      std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M:%S", &local) == 0) {
    return {};
  }
  std::array<char, 64> text{};
  const int length = std::snprintf(
      text.data(), text.size(), "%s.%03d ", date.data(), static_cast<int>(milliseconds));
  return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : std::string();
}

std::string prefix(LogLevel level) {
  std::string text = without_time.load() ? std::string() : time_prefix();
  text += "[lightcc ";
  if (const int rank = own_rank.load(); rank >= 0) {
    text += std::to_string(rank) + " ";
  }
  return text + level_name(level) + "] ";
}

void write_line(const std::string& line) {
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (written == 0 || errno != EINTR) {
      return;
    }
  }
}

}  // namespace

void configure_log(LogLevel level, bool hide_time, int rank) {
  min_level.store(level);
  without_time.store(hide_time);
  own_rank.store(rank);
}

bool log_enabled(LogLevel level) {
  return level >= min_level.load();
}

void log_line(LogLevel level, const char* format, ...) {
  std::array<char, kLineBytes> text{};
  std::va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  std::string line = prefix(level);
  const std::size_t prefix_bytes = line.size();
  line += length < 0 ? format : text.data();
  if (length >= 0 && static_cast<std::size_t>(length) >= text.size()) {
    line += kCut;
  }
  for (std::size_t i = prefix_bytes; i < line.size(); ++i) {
    if (const auto c = static_cast<unsigned char>(line[i]); c < ' ' || c == 0x7f) {
      line[i] = ' ';
    }
  }
  if (const Sink sink = current_sink.load(); sink != nullptr) {
    sink(level, line);
    return;
  }
  line += '\n';
  const int saved_errno = errno;
  write_line(line);
  errno = saved_errno;
}

void set_log_sink(void (*sink)(LogLevel level, const std::string& line)) {
  current_sink.store(sink);
}

}  // namespace lightcc
