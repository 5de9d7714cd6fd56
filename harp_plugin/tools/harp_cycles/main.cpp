// harp-cycles: what a packet costs HARP, by stage, what a core carries, and how far cores are
// apart.
//
// Needs no network and no privilege: stacks are joined by memory. Every loop checks what it moved.
//
//   $ chrt -r 1 harp-cycles
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench.hpp"
#include "cores.hpp"
#include "report.hpp"
#include "shape.hpp"
#include "stages.hpp"
#include "ticks.hpp"

namespace harp_cycles {
namespace {

constexpr const char* kUsage =
    "usage: harp-cycles [--part stages|cores|all] [--mtu 1500,8500] [--ms 5] [--repetitions 21]\n"
    "\n"
    "Each loop runs for --ms, --repetitions times, by turns with the others; medians are printed.\n"
    "Buffers are hot, or cold: four times the L2 to send from, and as much to receive into.\n";

struct Options {
  std::string part = "all";
  std::vector<std::size_t> mtus = {1500, 8500};
  double ms = 5;
  std::size_t repetitions = 21;
};

[[noreturn]] void complain(const std::string& name, const std::string& value, const char* allowed) {
  throw std::runtime_error(name + " '" + value + "': expected " + allowed);
}

std::size_t parse_count(const std::string& name,
                        const std::string& text,
                        std::size_t minimum,
                        std::size_t maximum) {
  std::size_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, value);
  const std::string_view unit(rest, end);
  if (problem == std::errc() && (unit == "k" || unit == "m")) {
    value = value > maximum ? maximum + 1 : value << (unit == "k" ? 10U : 20U);
  }
  if (problem != std::errc() || value < minimum || value > maximum ||
      (!unit.empty() && unit != "k" && unit != "m")) {
    const std::string allowed = "a number from " + std::to_string(minimum) + " to " +
                                std::to_string(maximum) + ", k and m are 1024 and 1048576";
    complain(name, text, allowed.c_str());
  }
  return value;
}

std::vector<std::size_t> parse_counts(const std::string& name,
                                      const std::string& text,
                                      std::size_t minimum,
                                      std::size_t maximum) {
  std::vector<std::size_t> counts;
  std::istringstream list(text);
  for (std::string one; std::getline(list, one, ',');) {
    counts.push_back(parse_count(name, one, minimum, maximum));
  }
  if (counts.empty()) {
    complain(name, text, "numbers with commas between them");
  }
  return counts;
}

double parse_ms(const std::string& name, const std::string& text) {
  constexpr double kMax = 10'000;
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || rest != end || !(value > 0 && value <= kMax)) {
    complain(name, text, "milliseconds above 0, up to 10000");
  }
  return value;
}

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const std::string& name = arguments[i];
    const std::string value = i + 1 < arguments.size() ? arguments[i + 1] : "";
    if (name == "--part") {
      if (value != "stages" && value != "cores" && value != "all") {
        complain(name, value, "stages, cores or all");
      }
      options.part = value;
    } else if (name == "--mtu") {
      options.mtus = parse_counts(name, value, 1500, 9600);
    } else if (name == "--ms") {
      options.ms = parse_ms(name, value);
    } else if (name == "--repetitions") {
      options.repetitions = parse_count(name, value, 1, 10'000);
    } else {
      throw std::runtime_error("unknown option '" + name + "'");
    }
  }
  return options;
}

class Program {
 public:
  explicit Program(Options options) : options_(std::move(options)), clock_(measure_clock()) {}

  void run() {
    print_clock(clock_);
    if (wants("cores")) {
      measure_lines(options_.repetitions);
    }
    if (wants("stages")) {
      for (const std::size_t mtu : options_.mtus) {
        stages(mtu);
      }
    }
    if (options_.part != "cores") {
      std::printf("\n%llu packets and messages were checked, 0 were wrong.\n",
                  static_cast<unsigned long long>(checked_));
    }
  }

 private:
  bool wants(std::string_view part) const {
    return options_.part == part || options_.part == "all";
  }

  StageFigures measure_stages(const Shape& shape) {
    std::vector<std::unique_ptr<Bench>> benches = transmit_benches(shape);
    for (auto& bench : receive_benches(shape)) {
      benches.push_back(std::move(bench));
    }
    benches.push_back(session_bench(shape));
    benches.push_back(turn_bench(shape));
    const auto all = measure(benches, options_.ms, options_.repetitions, clock_);
    for (const auto& bench : benches) {
      require(bench->checked() > 0, "nothing");
      checked_ += bench->checked();
    }
    const auto receive = all.begin() + kTransmitBenches;
    return {.transmit = {all.begin(), receive},
            .receive = {receive, receive + kReceiveBenches},
            .session = all[kTransmitBenches + kReceiveBenches],
            .turn = all.back()};
  }

  void stages(std::size_t mtu) {
    const Shape shape = hot_shape(mtu);
    const Shape cold_one = cold_shape(mtu, 4 * l2_bytes());
    const StageFigures hot = measure_stages(shape);
    const StageFigures cold = measure_stages(cold_one);
    const std::vector<Side> sides = {transmit_side(hot, cold), receive_side(hot, cold)};
    print_stages(shape, sides);
    std::printf(
        "\nBursts of %zu packets. Hot: %zu KiB of buffers; cold: %zu KiB, and %zu packets under "
        "way.\nThe two turns together, hot: %.0f to %.0f in %zu repetitions.\n",
        shape.burst_packets,
        shape.buffer_bytes() / 1024,
        cold_one.buffer_bytes() / 1024,
        cold_one.batch_packets,
        hot.turn.min_sum(),
        hot.turn.max_sum(),
        options_.repetitions);
    print_rates(shape, sides);
  }

  Options options_;
  Clock clock_;
  std::uint64_t checked_ = 0;
};

}  // namespace
}  // namespace harp_cycles

int main(int argc, char** argv) {
  using namespace harp_cycles;
  Options options;
  try {
    options = parse({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "harp-cycles: %s\n%s", error.what(), kUsage);
    return 2;
  }
  try {
    Program(std::move(options)).run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "harp-cycles: %s\n", error.what());
    return 1;
  }
}
