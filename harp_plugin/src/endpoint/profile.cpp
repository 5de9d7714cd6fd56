#include "endpoint/profile.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "datapath/unique_fd.hpp"

namespace harp {
namespace {

constexpr std::string_view kNamesBegin = "HARP_";
constexpr std::size_t kMaxShown = 80;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

bool is_printable(char c) {
  return c >= ' ' && c <= '~';
}

bool is_name(std::string_view text) {
  return text.size() > kNamesBegin.size() && text.starts_with(kNamesBegin) &&
         std::ranges::all_of(text, [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
         });
}

/// As much of a line as an error can show.
std::string shown(std::string_view line) {
  std::string text(line.substr(0, kMaxShown));
  std::ranges::replace_if(text, [](char c) { return !is_printable(c); }, '?');
  return "'" + text + (line.size() > kMaxShown ? "...'" : "'");
}

std::string reason(int number) {
  return std::generic_category().message(number);
}

/// The whole file, or nothing and why. `is_missing`: there is none.
std::optional<std::string> read_file(const std::string& path,
                                     bool* is_missing,
                                     std::string* error) {
  // Not to wait for the other end where the path is a pipe.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    *is_missing = errno == ENOENT || errno == ENOTDIR;
    *error = path + ": " + reason(errno);
    return std::nullopt;
  }
  if (!S_ISREG(status.st_mode)) {
    *error = path + ": expected a file";
    return std::nullopt;
  }
  std::string text(kMaxProfileBytes + 1, '\0');
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + bytes, text.size() - bytes);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      *error = path + ": " + reason(errno);
      return std::nullopt;
    }
    if (got == 0) {
      break;
    }
    bytes += static_cast<std::size_t>(got);
  }
  text.resize(bytes);
  return text;
}

}  // namespace

std::optional<Profile> Profile::parse(std::string_view text,
                                      const std::string& path,
                                      std::string* error) {
  if (text.size() > kMaxProfileBytes) {
    *error = path + ": expected at most " + std::to_string(kMaxProfileBytes) + " bytes";
    return std::nullopt;
  }
  Profile profile;
  profile.path_ = path;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view whole = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(whole.size() + 1, text.size()));
    const std::string_view line = trim(whole);
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    const auto refuse = [&](const std::string& allowed) {
      *error = path + ":" + std::to_string(number) + ": " + shown(line);
      *error += ": expected " + allowed;
      return std::nullopt;
    };
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos || !is_name(line.substr(0, equals))) {
      return refuse("HARP_NAME=VALUE, a comment that begins with #, or an empty line");
    }
    if (!std::ranges::all_of(line, is_printable)) {
      return refuse("printable ASCII");
    }
    const std::string name(line.substr(0, equals));
    if (name == "HARP_PROFILE") {
      return refuse("HARP_PROFILE in the environment only");
    }
    const auto [entry, is_new] =
        profile.entries_.try_emplace(name, Entry{std::string(line.substr(equals + 1)), number});
    if (!is_new) {
      return refuse(name + " once; line " + std::to_string(entry->second.line) + " has it");
    }
  }
  return profile;
}

std::optional<Profile> Profile::load(const GetVariable& get,
                                     const std::string& default_path,
                                     std::string* error) {
  const char* const wanted = get("HARP_PROFILE");
  const std::string path = wanted != nullptr ? wanted : default_path;
  if (path.empty() || path == "none") {
    return Profile();
  }
  bool is_missing = false;
  const auto text = read_file(path, &is_missing, error);
  if (text) {
    return parse(*text, path, error);
  }
  if (wanted == nullptr && is_missing) {
    error->clear();
    return Profile();
  }
  if (wanted != nullptr) {
    *error = "HARP_PROFILE=" + *error + "; expected a profile, or none";
  }
  return std::nullopt;
}

const char* Profile::get(const std::string& name) const {
  const auto found = entries_.find(name);
  return found != entries_.end() ? found->second.value.c_str() : nullptr;
}

std::string Profile::where(const std::string& name) const {
  const auto found = entries_.find(name);
  return found != entries_.end() ? path_ + ":" + std::to_string(found->second.line) : "";
}

std::string Profile::description() const {
  return path_.empty() ? "no profile"
                       : "profile " + path_ + ": " + std::to_string(entries_.size()) +
                             " variable(s); the environment's come first";
}

}  // namespace harp
