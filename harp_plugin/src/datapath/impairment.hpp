// Everything that goes wrong on links, decided packet by packet from a seed.
//
//   sender > [dark path][policer][loss] > queue, rate > delay > [damage, copy, detour] > receiver
//
// Packets of one path stay in order unless they make a detour. Who moves the packets asks for the
// fate of each and carries it out: the simulator's wires, and FaultyDatapath in real time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/rng.hpp"
#include "base/time.hpp"

namespace harp {

struct ImpairmentConfig {
  double bits_per_s = 0;  ///< 0: no serialisation time.
  Duration delay{};
  Duration jitter{};                 ///< Added, uniform; order per path is kept.
  std::size_t queue_packets = 1000;  ///< What waits for the rate; more is dropped.
  std::size_t mtu_bytes = 65536;     ///< IP packets above it vanish.
  double loss = 0;
  double burst_start = 0;           ///< Chance that a packet begins a run of losses ...
  std::uint64_t burst_packets = 0;  ///< ... of 1 .. this many, within 100 ms.
  double duplicate = 0;
  double corrupt = 0;  ///< One or three flipped bits, or a wrong length.
  double detour = 0;   ///< Chance of an extra delay of up to detour_delay.
  Duration detour_delay{};
  std::uint64_t dark_paths = 0;   ///< Bit per path that loses everything.
  double policed_bits_per_s = 0;  ///< Token bucket without a queue; 0: none.
  double policer_burst_bytes = 0;
  Time dark_from = kNever;  ///< Everything vanishes between these times.
  Time dark_until = kNever;
};

class Impairment {
 public:
  struct Fate {
    Time at;                      ///< When it arrives.
    std::optional<Time> copy_at;  ///< A copy of it, undamaged.
    bool is_damaged = false;
  };

  Impairment(const ImpairmentConfig& config, std::uint64_t seed);

  /// Decides on a packet that enters at `now`; nothing where it is lost. `path` is below 64.
  std::optional<Fate> decide(std::size_t path, std::size_t ip_bytes, Time now);
  /// Flips bits of `packet`, or changes its length.
  void damage(std::vector<std::byte>& packet);

  ImpairmentConfig& config() { return config_; }

 private:
  bool is_dropped(std::size_t path, std::size_t ip_bytes, Time now);
  bool is_policed(std::size_t ip_bytes, Time now);

  ImpairmentConfig config_;
  Rng rng_;
  Time busy_until_{};
  std::vector<Time> last_arrival_;  ///< One for each path.
  std::uint64_t burst_left_ = 0;
  Time burst_until_{};
  double tokens_ = 0;
  Time tokens_at_{};
};

}  // namespace harp
