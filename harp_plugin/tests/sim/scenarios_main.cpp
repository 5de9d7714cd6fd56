// Plays stories of the simulator: harp_scenarios [--first SEED] [--count N] [--trace]
//
// Prints for each failure the command that plays that story alone, with every packet. Exits 1 where
// there was one, or where the stories were too tame to prove anything.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sim/scenario.hpp"

int main(int argc, char** argv) {
  std::uint64_t first = 1;
  std::uint64_t count = 1000;
  std::FILE* trace = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--first") == 0 && i + 1 < argc) {
      first = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--count") == 0 && i + 1 < argc) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--trace") == 0) {
      trace = stdout;
    } else {
      std::fprintf(stderr, "usage: %s [--first SEED] [--count N] [--trace]\n", argv[0]);
      return 2;
    }
  }
  std::uint64_t failures = 0;
  std::uint64_t fatal = 0;
  std::uint64_t wrapped = 0;
  std::uint64_t packets = 0;
  std::uint64_t retransmitted = 0;
  std::uint64_t dropped = 0;
  std::uint64_t events = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const harp::sim::ScenarioResult result = harp::sim::run_scenario(seed, trace);
    fatal += result.was_fatal ? 1 : 0;
    wrapped += result.wrapped ? 1 : 0;
    packets += result.data_packets;
    retransmitted += result.retransmitted;
    dropped += result.dropped;
    events += result.events;
    if (!result.ok) {
      ++failures;
      std::printf("seed %llu: %s\n  %s\n  replay: %s --first %llu --count 1 --trace\n",
                  static_cast<unsigned long long>(seed),
                  result.why.c_str(),
                  result.summary.c_str(),
                  argv[0],
                  static_cast<unsigned long long>(seed));
    }
  }
  std::printf(
      "%llu stories, %llu failed; %llu with a fatal fault, %llu passed the wrap; %llu data "
      "packets, "
      "%llu dropped, %llu retransmitted, %llu events\n",
      static_cast<unsigned long long>(count),
      static_cast<unsigned long long>(failures),
      static_cast<unsigned long long>(fatal),
      static_cast<unsigned long long>(wrapped),
      static_cast<unsigned long long>(packets),
      static_cast<unsigned long long>(dropped),
      static_cast<unsigned long long>(retransmitted),
      static_cast<unsigned long long>(events));
  const bool is_tame =
      count >= 1000 && (fatal == 0 || wrapped < count / 20 || retransmitted == 0 || dropped == 0);
  if (is_tame) {
    std::printf("the stories were too tame\n");
  }
  return failures > 0 || is_tame ? 1 : 0;
}
