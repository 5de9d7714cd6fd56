// The order in which one member, or one channel, runs the two halves of the chunks of a bucket. A
// pure function of what all members share.
//
// With L chunks of lead it is
//
//   S0 S1 .. S(L-1)  G0 S(L)  G1 S(L+1) ...  and the remaining gathers,
//
// where S(i) scatters chunk i and G(i) gathers it. So chunks i+1 .. i+L-1 are under way while G(i)
// waits for what it has to bring back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lightcc {

class ChunkSchedule {
 public:
  enum class Half : std::uint8_t { kScatter, kGather };
  struct Step {
    Half half = Half::kScatter;
    std::size_t chunk = 0;
    bool operator==(const Step&) const = default;
  };

  /// `lead` is at least 1.
  ChunkSchedule(std::size_t chunks, std::size_t lead)
      : chunks_(chunks), lead_(std::max<std::size_t>(1, std::min(lead, chunks))) {}

  std::size_t chunks() const { return chunks_; }
  /// Chunks between their scatter and the end of their gather at any time: at most so many.
  std::size_t lead() const { return lead_; }
  /// Two for each chunk.
  std::size_t steps() const { return 2 * chunks_; }
  Step step(std::size_t index) const {
    if (index < lead_) {
      return {.half = Half::kScatter, .chunk = index};
    }
    const std::size_t later = index - lead_;
    if (later < 2 * behind()) {
      return later % 2 == 0 ? Step{.half = Half::kGather, .chunk = later / 2}
                            : Step{.half = Half::kScatter, .chunk = lead_ + later / 2};
    }
    return {.half = Half::kGather, .chunk = later - behind()};
  }
  /// The index of the step that scatters, or gathers, `chunk`.
  std::size_t scatter_at(std::size_t chunk) const {
    return chunk < lead_ ? chunk : lead_ + 2 * (chunk - lead_) + 1;
  }
  std::size_t gather_at(std::size_t chunk) const {
    return lead_ + chunk + std::min(chunk, behind());
  }

 private:
  /// Scatters that follow the first gather.
  std::size_t behind() const { return chunks_ - lead_; }

  std::size_t chunks_;
  std::size_t lead_;
};

}  // namespace lightcc
