// harp-perf: bandwidth and latency between two machines, by HARP, any NCCL net plugin, or kernel
// TCP, in turns within one run.
//
//   there$ harp-perf --listen 192.0.2.1:7000
//   here$  harp-perf --connect 192.0.2.1:7000 --via tcp --via libnccl-net-harp.so
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control.hpp"
#include "link.hpp"
#include "measure.hpp"

namespace harp_perf {
namespace {

constexpr const char* kUsage =
    "usage: harp-perf --listen IPV4:PORT\n"
    "       harp-perf --connect IPV4:PORT --via VIA [--via ...]\n"
    "                 [--sizes 64,65536,1m] [--seconds 1] [--rounds 3] [--window 8]\n"
    "\n"
    "VIA: tcp, one connection; tcp-each-way, two, as NCCL's sockets have; or a plugin,\n"
    "\"[NAME=VALUE ...] PLUGIN.so\", with the environment, at both ends, while it starts.\n"
    "Streams messages of each size to the listening end, and sends the smallest to and fro. "
    "Medians\n"
    "over the rounds; ratios to the first --via. Every message is checked.\n";

struct Options {
  std::string listen;
  std::string connect;
  std::vector<std::string> vias;
  std::vector<std::size_t> sizes = {64, 4096, 65536, 524288, 4194304};
  double seconds = 1;
  std::size_t rounds = 3;
  std::size_t window = 8;
};

std::size_t parse_count(std::string_view text, std::size_t maximum) {
  std::size_t value = 0;
  const auto [end, problem] = std::from_chars(text.begin(), text.end(), value);
  const std::string_view unit(end, text.end());
  value *= unit == "k" ? 1024 : unit == "m" ? 1048576 : 1;
  if (problem != std::errc() || value == 0 || value > maximum ||
      (!unit.empty() && unit != "k" && unit != "m")) {
    throw std::runtime_error("'" + std::string(text) + "': expected a number from 1 to " +
                             std::to_string(maximum) + ", k and m are 1024 and 1048576");
  }
  return value;
}

double parse_seconds(std::string_view text) {
  constexpr double kMax = 3600;
  double value = 0;
  const auto [end, problem] = std::from_chars(text.begin(), text.end(), value);
  if (problem != std::errc() || end != text.end() || !(value > 0 && value <= kMax)) {
    throw std::runtime_error("'" + std::string(text) + "': expected seconds above 0, up to 3600");
  }
  return value;
}

Options parse_options(const std::vector<std::string>& arguments) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
  Options options;
  for (std::size_t i = 0; i + 1 < arguments.size(); i += 2) {
    const std::string& name = arguments[i];
    const std::string& value = arguments[i + 1];
    if (name == "--listen") {
      options.listen = value;
    } else if (name == "--connect") {
      options.connect = value;
    } else if (name == "--via") {
      options.vias.push_back(value);
    } else if (name == "--sizes") {
      options.sizes.clear();
      std::istringstream list(value);
      for (std::string one; std::getline(list, one, ',');) {
        options.sizes.push_back(parse_count(one, kMaxBytes));
      }
    } else if (name == "--seconds") {
      options.seconds = parse_seconds(value);
    } else if (name == "--rounds") {
      options.rounds = parse_count(value, 1000);
    } else if (name == "--window") {
      options.window = parse_count(value, kMaxSlots);
    } else {
      throw std::runtime_error("unknown option " + name);
    }
  }
  if (arguments.size() % 2 != 0 || options.listen.empty() == options.connect.empty() ||
      (!options.connect.empty() && options.vias.empty()) || options.sizes.empty()) {
    throw std::runtime_error("wrong arguments");
  }
  return options;
}

/// Without the plugin's folder.
std::string name_of(const std::string& via) {
  const std::size_t path = via.rfind(' ') + 1;
  const std::size_t slash = via.rfind('/');
  return slash == std::string::npos || slash < path ? via
                                                    : via.substr(0, path) + via.substr(slash + 1);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// --- The listening end ---------------------------------------------------------------------------

int serve(const Options& options) {
  Control control = Control::accept(options.listen);
  std::vector<Ends> links;
  for (;;) {
    std::istringstream order(control.hear());
    std::string what;
    order >> what;
    if (what == "open") {
      std::string via;
      std::getline(order >> std::ws, via);
      links.push_back(make_links(via, false, control.here(), control.peer(), control));
    } else if (what == "end") {
      return 0;
    } else {
      std::size_t link = 0;
      std::size_t bytes = 0;
      std::size_t count = 0;
      std::size_t window = 0;
      order >> link >> bytes >> count >> window;
      if (what == "stream") {
        Messages messages = make_messages(bytes, window, false);
        control.say("ready");
        const Usage usage = stream(*links.at(link).in, false, messages, count);
        (void)control.hear();  // All is acknowledged: checking may keep the core for long.
        check_last(messages, count);
        control.say(std::to_string(usage.wall_s) + " " + std::to_string(usage.cpu_s));
      } else {
        echo(links.at(link), bytes, count);
        control.say("0");
      }
    }
  }
}

// --- The end that asks ---------------------------------------------------------------------------

struct Figures {
  std::vector<double> gbit_per_s;
  std::vector<double> cpu_s_per_gb;  ///< Both ends count.
  std::vector<double> median_us;
  std::vector<double> p99_us;
};

class Client {
 public:
  explicit Client(const Options& options)
      : options_(options), control_(Control::connect(options.connect)) {
    for (const std::string& via : options.vias) {
      control_.say("open " + via);
      links_.push_back(make_links(via, true, control_.here(), control_.peer(), control_));
    }
  }

  void run() {
    for (const std::size_t bytes : options_.sizes) {
      for (std::size_t round = 0; round < options_.rounds; ++round) {
        for (std::size_t link = 0; link < links_.size(); ++link) {
          measure_stream(link, bytes, figures_[{link, bytes}]);
        }
      }
    }
    const std::size_t minimum = std::ranges::min(options_.sizes);
    for (std::size_t round = 0; round < options_.rounds; ++round) {
      for (std::size_t link = 0; link < links_.size(); ++link) {
        measure_latency(link, minimum, figures_[{link, minimum}]);
      }
    }
    control_.say("end");
  }

  void print() const {
    std::printf(
        "| bytes | via | Gb/s | ratio | CPU s per GB, both ends |\n|---|---|---|---|---|\n");
    for (const std::size_t bytes : options_.sizes) {
      const double first = median(figures_.at({0, bytes}).gbit_per_s);
      for (std::size_t link = 0; link < links_.size(); ++link) {
        const Figures& one = figures_.at({link, bytes});
        std::printf("| %zu | %s | %.3f | %.2f | %.2f |\n",
                    bytes,
                    name_of(options_.vias[link]).c_str(),
                    median(one.gbit_per_s),
                    median(one.gbit_per_s) / first,
                    median(one.cpu_s_per_gb));
      }
    }
    const std::size_t minimum = std::ranges::min(options_.sizes);
    std::printf("\n| round trip of %zu bytes | median us | ratio | p99 us |\n|---|---|---|---|\n",
                minimum);
    const double first = median(figures_.at({0, minimum}).median_us);
    for (std::size_t link = 0; link < links_.size(); ++link) {
      const Figures& one = figures_.at({link, minimum});
      std::printf("| %s | %.1f | %.2f | %.1f |\n",
                  name_of(options_.vias[link]).c_str(),
                  median(one.median_us),
                  median(one.median_us) / first,
                  median(one.p99_us));
    }
  }

 private:
  void order(const char* what, std::size_t link, std::size_t bytes, std::size_t count) {
    control_.say(std::string(what) + " " + std::to_string(link) + " " + std::to_string(bytes) +
                 " " + std::to_string(count) + " " + std::to_string(options_.window));
  }

  /// The time is the receiver's: what a sender calls done may still lie in a socket's buffer.
  Usage stream_once(std::size_t link, std::size_t bytes, std::size_t count) {
    Messages messages = make_messages(bytes, options_.window, true);
    order("stream", link, bytes, count);
    (void)control_.hear();
    const Usage here = stream(*links_[link].out, true, messages, count);
    control_.say("sent");
    Usage there;
    std::istringstream(control_.hear()) >> there.wall_s >> there.cpu_s;
    return {.wall_s = there.wall_s, .cpu_s = here.cpu_s + there.cpu_s};
  }

  /// As many messages as take --seconds, found by a shorter run before.
  void measure_stream(std::size_t link, std::size_t bytes, Figures& figures) {
    std::size_t count = 2 * options_.window;
    Usage usage = stream_once(link, bytes, count);
    while (usage.wall_s < options_.seconds / 8) {
      count *= 4;
      usage = stream_once(link, bytes, count);
    }
    count =
        static_cast<std::size_t>(static_cast<double>(count) * options_.seconds / usage.wall_s) + 1;
    usage = stream_once(link, bytes, count);
    const double gigabytes = static_cast<double>(bytes) * static_cast<double>(count) * 1e-9;
    figures.gbit_per_s.push_back(8 * gigabytes / usage.wall_s);
    figures.cpu_s_per_gb.push_back(usage.cpu_s / gigabytes);
  }

  void measure_latency(std::size_t link, std::size_t bytes, Figures& figures) {
    constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
    const auto count = std::clamp<std::size_t>(kMaxBytes / bytes, 20, 5000);
    order("pingpong", link, bytes, count);
    const auto sorted = ping_pong(links_[link], bytes, count);
    (void)control_.hear();
    figures.median_us.push_back(sorted[sorted.size() / 2] * 1e6);
    figures.p99_us.push_back(sorted[sorted.size() * 99 / 100] * 1e6);
  }

  const Options& options_;
  Control control_;
  std::vector<Ends> links_;
  std::map<std::pair<std::size_t, std::size_t>, Figures> figures_;
};

}  // namespace
}  // namespace harp_perf

int main(int argc, char** argv) {
  using namespace harp_perf;
  Options options;
  try {
    options = parse_options({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "harp-perf: %s\n%s", error.what(), kUsage);
    return 2;
  }
  try {
    if (!options.listen.empty()) {
      return serve(options);
    }
    Client client(options);
    client.run();
    client.print();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "harp-perf: %s\n", error.what());
    return 1;
  }
}
