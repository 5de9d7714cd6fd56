// Plays stories of the control plane: control_stories [--first SEED] [--count N] [--sabotage KIND]
//
// Prints for each failure the command that plays that story alone. Exits 1 where there was one, or
// where the stories were too tame to prove anything. With --sabotage the simulator breaks something
// on purpose (lose-frame, swap-frames, blame-wrongly, hide-waiting, spoil-input), and it is a
// failure if no story notices.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "control_story.hpp"

namespace {

using lightcc::sim::Sabotage;

bool parse_sabotage(const char* text, Sabotage& sabotage) {
  if (std::strcmp(text, "lose-frame") == 0) {
    sabotage = Sabotage::kLoseFrame;
  } else if (std::strcmp(text, "swap-frames") == 0) {
    sabotage = Sabotage::kSwapFrames;
  } else if (std::strcmp(text, "blame-wrongly") == 0) {
    sabotage = Sabotage::kBlameWrongly;
  } else if (std::strcmp(text, "hide-waiting") == 0) {
    sabotage = Sabotage::kHideWaiting;
  } else if (std::strcmp(text, "spoil-input") == 0) {
    sabotage = Sabotage::kSpoilInput;
  } else {
    return false;
  }
  return true;
}

unsigned long long as_printed(std::uint64_t number) {
  return static_cast<unsigned long long>(number);
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t first = 1;
  std::uint64_t count = 1000;
  Sabotage sabotage = Sabotage::kNone;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--first") == 0 && i + 1 < argc) {
      first = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--count") == 0 && i + 1 < argc) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--sabotage") == 0 && i + 1 < argc &&
               parse_sabotage(argv[i + 1], sabotage)) {
      ++i;
    } else {
      std::fprintf(stderr,
                   "usage: %s [--first SEED] [--count N] "
                   "[--sabotage lose-frame|swap-frames|blame-wrongly|hide-waiting|spoil-input]\n",
                   argv[0]);
      return 2;
    }
  }
  std::uint64_t failures = 0;
  std::uint64_t failed_worlds = 0;
  std::uint64_t closed = 0;
  std::uint64_t operations = 0;
  std::uint64_t inline_results = 0;
  std::uint64_t events = 0;
  int most_ranks = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const auto result = lightcc::sim::play_story(seed, sabotage);
    failed_worlds += result.failed_world ? 1 : 0;
    closed += result.closed ? 1 : 0;
    operations += result.operations;
    inline_results += result.inline_results;
    events += result.events;
    most_ranks = result.ranks > most_ranks ? result.ranks : most_ranks;
    if (!result.ok) {
      ++failures;
      if (failures <= 20 && sabotage == Sabotage::kNone) {
        std::printf("seed %llu: %s\n  %s\n  replay: %s --first %llu --count 1\n",
                    as_printed(seed),
                    result.why.c_str(),
                    result.summary.c_str(),
                    argv[0],
                    as_printed(seed));
      }
    }
  }
  std::printf(
      "%llu stories, %llu failed; %llu worlds ended in error, %llu in order; %llu "
      "operations (%llu inline), %llu events, up to %d ranks\n",
      as_printed(count),
      as_printed(failures),
      as_printed(failed_worlds),
      as_printed(closed),
      as_printed(operations),
      as_printed(inline_results),
      as_printed(events),
      most_ranks);
  if (sabotage != Sabotage::kNone) {
    std::printf("what was broken on purpose was %s\n", failures > 0 ? "found" : "not found");
    return failures > 0 ? 0 : 1;
  }
  const bool is_tame =
      count >= 1000 && (failed_worlds < count / 4 || closed == 0 || inline_results < count);
  if (is_tame) {
    std::printf("the stories were too tame\n");
  }
  return failures > 0 || is_tame ? 1 : 0;
}
