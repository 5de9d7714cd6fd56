// How HARP and kernel TCP share a link, as a table; in virtual time.
//
//   harp_sharing [--queue-ms 1,5,10,20,50] [--rtt-us 100] [--seconds 20] [--mbit 1000] [--seed 1]
//                [--compete] [--virtual] [--trace] [MIX ...]
//
// A mix is a list of flows: h is a session of HARP, c a TCP connection with CUBIC, b one with BBR;
// those behind a comma begin two seconds later: "h" "hhhh" "h,c" "b,h" "hh,c". --compete lets
// sessions compete, as HARP_COMPETE=1 does. --virtual has TCP's packets cross in parcels, as
// between network namespaces. --trace prints what sessions think, every 100 ms.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/time.hpp"
#include "protocol/competition.hpp"
#include "protocol/session.hpp"
#include "sim/shared_link.hpp"

namespace {

using harp::Duration;
using harp::Time;
using harp::sim::SharedLink;
using std::chrono::milliseconds;

struct Options {
  std::vector<double> queues_ms{1, 5, 10, 20, 50};
  double rtt_us = 100;
  double seconds = 20;
  double mbit = 1000;
  std::uint64_t seed = 1;
  bool competes = false;
  bool is_virtual = false;
  bool trace = false;
  std::vector<std::string> mixes;
};

Duration from_seconds(double value) {
  return Duration(static_cast<std::int64_t>(value * 1e9));
}

[[noreturn]] void wrong(const std::string& what) {
  std::fprintf(stderr,
               "harp_sharing: %s\nusage: harp_sharing [--queue-ms 1,10] [--rtt-us 100] "
               "[--seconds 20] [--mbit 1000] [--seed 1] [--compete] [--trace] [MIX ...]\n"
               "a mix: h (HARP), c (CUBIC), b (BBR), those behind a comma two seconds later\n",
               what.c_str());
  std::exit(2);
}

double number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0)) {
    wrong("'" + text + "': expected a number above 0");
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--compete") {
      options.competes = true;
      continue;
    }
    if (name == "--virtual") {
      options.is_virtual = true;
      continue;
    }
    if (name == "--trace") {
      options.trace = true;
      continue;
    }
    if (!name.starts_with("--")) {
      if (name.find_first_not_of("hcb,") != std::string::npos) {
        wrong("unknown mix " + name);
      }
      options.mixes.push_back(name);
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    if (name == "--queue-ms") {
      options.queues_ms.clear();
      std::stringstream list(value);
      for (std::string item; std::getline(list, item, ',');) {
        options.queues_ms.push_back(number(item));
      }
    } else if (name == "--rtt-us") {
      options.rtt_us = number(value);
    } else if (name == "--seconds") {
      options.seconds = number(value);
    } else if (name == "--mbit") {
      options.mbit = number(value);
    } else if (name == "--seed") {
      options.seed = static_cast<std::uint64_t>(number(value));
    } else {
      wrong("unknown option " + name);
    }
  }
  if (options.mixes.empty()) {
    options.mixes = {"h", "hhhh", "c,h", "h,c", "b,h", "h,b", "cc,h", "bb,h", "hhhh,c", "c", "b"};
  }
  return options;
}

void add_flows(SharedLink& link, const std::string& mix) {
  Time from{};
  for (const char flow : mix) {
    switch (flow) {
      case 'h':
        link.add_harp(from);
        break;
      case 'c':
        link.add_cubic(from);
        break;
      case 'b':
        link.add_bbr(from);
        break;
      default:
        from += std::chrono::seconds(2);
        break;
    }
    from += milliseconds(5);
  }
}

void trace(const SharedLink& link, const harp::sim::Shares& shares, double at_s) {
  std::printf("%7.2f s tcp %.3f queue %.2f ms (%.2f)",
              at_s,
              shares.tcp_sum(),
              shares.mean_queue_s * 1e3,
              shares.max_queue_s * 1e3);
  for (std::size_t i = 0; i < shares.harp.size(); ++i) {
    if (!link.has_begun(i)) {
      continue;
    }
    const harp::Session& session = link.session(i);
    const harp::Competition& competition = session.congestion().competition();
    std::printf(" | %.3f window %.0f rtt %.2f min %.3f ms",
                shares.harp[i],
                session.congestion().window_packets(),
                harp::seconds(session.paths().best_rtt()) * 1e3,
                harp::seconds(session.paths().min_rtt()) * 1e3);
    if (competition.is_competing()) {
      std::printf(" competes with a share of %.2f", competition.share());
    }
  }
  std::printf("\n");
}

void run(const Options& options, const std::string& mix, double queue_ms) {
  SharedLink link({.bits_per_s = options.mbit * 1e6,
                   .queue = from_seconds(queue_ms * 1e-3),
                   .round_trip = from_seconds(options.rtt_us * 1e-6),
                   .seed = options.seed,
                   .is_virtual = options.is_virtual,
                   .competes = options.competes});
  add_flows(link, mix);
  const double start_s = mix.find(',') == std::string::npos ? 0 : 2.1;
  const Time start = Time{} + from_seconds(start_s + options.seconds * 0.25);
  const Time end = Time{} + from_seconds(start_s + options.seconds);
  if (options.trace) {
    for (Time at{}; at < end; at += milliseconds(100)) {
      const auto shares = link.measure_until(at + milliseconds(100));
      trace(link, shares, harp::seconds(at.time_since_epoch()) + 0.1);
    }
    return;
  }
  link.run_until(start);
  const auto shares = link.measure_until(end);
  std::printf("| %s | %g | %.3f | %.3f | %.3f | %.2f | %.2f |\n",
              mix.c_str(),
              queue_ms,
              shares.harp_sum(),
              shares.tcp_sum(),
              harp::sim::fairness(shares.harp),
              shares.mean_queue_s * 1e3,
              shares.max_queue_s * 1e3);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::printf(
      "| flows | queue ms | HARP | TCP | Jain of HARP | mean queue ms | most |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const std::string& mix : options.mixes) {
    for (const double queue_ms : options.queues_ms) {
      run(options, mix, queue_ms);
    }
  }
  return 0;
}
