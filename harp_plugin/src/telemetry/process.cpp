#include "telemetry/process.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "datapath/unique_fd.hpp"

namespace harp {
namespace {

/// The beginning of a file of /proc; errno says why where there is nothing.
std::optional<std::string> read_start(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  const ssize_t count = file.is_open() ? ::read(file.get(), text.data(), text.size()) : -1;
  return count < 0 ? std::nullopt
                   : std::optional(std::string(text.data(), static_cast<std::size_t>(count)));
}

struct Running {
  char state = '?';
  std::uint64_t start_ticks = 0;
};

/// Fields 3 and 22 of /proc/PID/stat. The second is a name in brackets, which may hold anything.
std::optional<Running> parse_running(std::string_view stat) {
  const std::size_t bracket = stat.rfind(')');
  if (bracket == std::string_view::npos || bracket + 2 >= stat.size()) {
    return std::nullopt;
  }
  std::string_view rest = stat.substr(bracket + 2);
  Running running{.state = rest.front()};
  constexpr int kFieldsBetween = 19;
  for (int field = 0; field < kFieldsBetween; ++field) {
    const std::size_t space = rest.find(' ');
    if (space == std::string_view::npos) {
      return std::nullopt;
    }
    rest.remove_prefix(space + 1);
  }
  const auto [end, problem] = std::from_chars(rest.begin(), rest.end(), running.start_ticks);
  return problem == std::errc() && end != rest.begin() ? std::optional(running) : std::nullopt;
}

int hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') {
    return digit - '0';
  }
  return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/// "01234567-89ab-...": 16 bytes; zeroes where it is something else.
std::array<std::byte, 16> parse_uuid(std::string_view text) {
  std::array<std::byte, 16> bytes{};
  std::size_t digits = 0;
  for (const char digit : text) {
    const int value = hex_digit(digit);
    if (value >= 0 && digits < 2 * bytes.size()) {
      std::byte& byte = bytes[digits / 2];
      byte = (byte << 4) | static_cast<std::byte>(value);
      ++digits;
    }
  }
  return digits == 2 * bytes.size() ? bytes : std::array<std::byte, 16>{};
}

}  // namespace

ProcessIdentity own_identity() {
  ProcessIdentity own{.pid = static_cast<std::uint32_t>(::getpid())};
  const auto stat = read_start("/proc/self/stat");
  // A /proc that counts in another namespace tells nothing about ours.
  const bool is_of_ours = stat && stat->starts_with(std::to_string(own.pid) + " ");
  const auto running = is_of_ours ? parse_running(*stat) : std::nullopt;
  own.start_ticks = running ? running->start_ticks : 0;
  struct stat space{};
  own.pid_namespace = ::stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
  own.boot_id = parse_uuid(read_start("/proc/sys/kernel/random/boot_id").value_or(""));
  return own;
}

ProcessLife look_for(const ProcessIdentity& process) {
  const ProcessIdentity own = own_identity();
  constexpr std::array<std::byte, 16> kNotReported{};
  if (process.boot_id != own.boot_id && process.boot_id != kNotReported &&
      own.boot_id != kNotReported) {
    return ProcessLife::kDead;
  }
  if (own.start_ticks == 0 || process.start_ticks == 0 ||
      process.pid_namespace != own.pid_namespace) {
    return ProcessLife::kUnknown;
  }
  const auto stat = read_start("/proc/" + std::to_string(process.pid) + "/stat");
  if (!stat) {
    return errno == ENOENT || errno == ESRCH ? ProcessLife::kDead : ProcessLife::kUnknown;
  }
  const auto running = parse_running(*stat);
  if (!running) {
    return ProcessLife::kUnknown;
  }
  const bool has_ended = running->state == 'Z' || running->state == 'X';
  return running->start_ticks != process.start_ticks || has_ended ? ProcessLife::kDead
                                                                  : ProcessLife::kAlive;
}

}  // namespace harp
