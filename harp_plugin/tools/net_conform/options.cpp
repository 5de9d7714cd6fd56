#include "options.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <climits>
#include <cstdio>
#include <sstream>

namespace net_conform {
namespace {

constexpr const char* kUsage = R"(usage: net-conform --plugin PATH --abi N [options]

Drives a network plugin of NCCL as NCCL's service and progress threads do, and prints one line for
each rule that it looked at: ok, skip or FAIL. The status is 0 if none failed, 1 if one did, 2 for a
wrong command line, 3 if a call blocked, 4 if one crashed.

  --plugin PATH        libnccl-net-X.so, as dlopen takes it
  --abi N              4 to 12
  --dev I              device (0)
  --tests LIST         names of cases, or their beginnings, separated by commas (all)
  --bytes LIST         sizes of messages for data.sizes
  --seconds S          how long data.soak runs (0.2)
  --timeout S          maximum time for one case (60)
  --peer-timeout S     maximum time until a dead peer is an error (45)
  --processes          the other side is a process, not a thread
  --peer-prefix WORDS  and is started by these words: "ip netns exec b", "ssh host"
  --strict             also rules that NCCL itself does not rely on
  --handle-bytes N     maximum bytes of a handle (NCCL's)
  --list               prints cases and rules, and ends
)";

const std::vector<std::size_t>& default_sizes() {
  static const std::vector<std::size_t> kSizes = {
      0,    1,    2,    63,    64,     65,     1407,   1408,    1409,          2816,
      4095, 4096, 4097, 16384, 131072, 524287, 524288, 1 << 20, (4 << 20) + 3, 8 << 20};
  return kSizes;
}

template <typename T>
bool read_number(const std::string& text, T minimum, T maximum, T* number) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < minimum ||
      value > maximum) {
    return false;
  }
  *number = value;
  return true;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) {
      parts.push_back(part);
    }
  }
  return parts;
}

bool read_sizes(const std::string& text, std::vector<std::size_t>* sizes) {
  constexpr std::size_t kMax = std::size_t{1} << 30;
  for (const std::string& part : split(text, ',')) {
    std::size_t bytes = 0;
    if (!read_number<std::size_t>(part, 0, kMax, &bytes)) {
      return false;
    }
    sizes->push_back(bytes);
  }
  return !sizes->empty();
}

bool read_value(const std::string& name, const std::string& value, Options* options) {
  if (name == "--plugin") {
    options->plugin = value;
    return !value.empty();
  }
  if (name == "--abi") {
    return read_number(value, 4, 12, &options->version);
  }
  if (name == "--dev") {
    return read_number(value, 0, INT_MAX, &options->device);
  }
  if (name == "--tests") {
    options->tests = split(value, ',');
    return !options->tests.empty();
  }
  if (name == "--bytes") {
    return read_sizes(value, &options->sizes_bytes);
  }
  if (name == "--seconds") {
    return read_number(value, 0.0, 1e6, &options->soak_s);
  }
  if (name == "--timeout") {
    return read_number(value, 0.1, 1e6, &options->limit_s);
  }
  if (name == "--peer-timeout") {
    return read_number(value, 0.1, 1e6, &options->peer_limit_s);
  }
  if (name == "--peer-prefix") {
    options->peer_prefix = value;
    options->has_peer_process = true;
    return true;
  }
  if (name == "--handle-bytes") {
    return read_number<std::size_t>(value, 1, 128, &options->handle_limit_bytes);
  }
  return false;
}

}  // namespace

bool parse_options(const std::vector<std::string>& arguments, Options* options) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--strict") {
      options->is_strict = true;
    } else if (name == "--processes") {
      options->has_peer_process = true;
    } else if (name == "--peer") {
      options->is_peer = true;
    } else if (name == "--list") {
      options->only_list = true;
    } else if (name == "--help") {
      std::fputs(kUsage, stdout);
      return false;
    } else if (i + 1 == arguments.size()) {
      std::fprintf(
          stderr, "net-conform: %s is no option, or lacks its value\n%s", name.c_str(), kUsage);
      return false;
    } else if (!read_value(name, arguments[++i], options)) {
      std::fprintf(stderr,
                   "net-conform: %s %s makes no sense; see --help\n",
                   name.c_str(),
                   arguments[i].c_str());
      return false;
    }
  }
  if (options->plugin.empty() && !options->only_list) {
    std::fputs("net-conform: --plugin is missing; see --help\n", stderr);
    return false;
  }
  if (options->sizes_bytes.empty()) {
    options->sizes_bytes = default_sizes();
  }
  return true;
}

std::vector<std::string> peer_command(const Options& options) {
  std::vector<std::string> words = split(options.peer_prefix, ' ');
  std::array<char, PATH_MAX> self{};
  const ssize_t length = ::readlink("/proc/self/exe", self.data(), self.size() - 1);
  words.emplace_back(length > 0 ? self.data() : "net-conform");
  const auto add = [&](const char* name, const std::string& value) {
    words.emplace_back(name);
    words.push_back(value);
  };
  const auto join = [](const auto& list, auto to_text) {
    std::string text;
    for (const auto& entry : list) {
      text += (text.empty() ? "" : ",") + to_text(entry);
    }
    return text;
  };
  add("--plugin", options.plugin);
  add("--abi", std::to_string(options.version));
  add("--dev", std::to_string(options.device));
  if (!options.tests.empty()) {
    add("--tests", join(options.tests, [](const std::string& name) { return name; }));
  }
  add("--bytes",
      join(options.sizes_bytes, [](std::size_t bytes) { return std::to_string(bytes); }));
  add("--seconds", std::to_string(options.soak_s));
  add("--timeout", std::to_string(options.limit_s));
  add("--peer-timeout", std::to_string(options.peer_limit_s));
  if (options.is_strict) {
    words.emplace_back("--strict");
  }
  words.emplace_back("--processes");
  words.emplace_back("--peer");
  return words;
}

}  // namespace net_conform
