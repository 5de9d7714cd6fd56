// When an acknowledgement is due, and what it says of paths and times.
//
// At once where the sender waits for it (last packet of a message, a request) or may have lost
// something (a hole in the order of one path, a packet that was there already); else after 32
// packets, 64 KiB or 25 us, whichever is first. "At once" means: when the caller next asks for
// packets, which is after a whole burst of arrivals, so a burst costs one acknowledgement.
//
// The newest arrival is echoed, since its sample is the least delayed by the burst; one that others
// of its path have overtaken is not. The echo says how long the packet has been on this host, so
// that the time for which nobody looked does not count as the network's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/time.hpp"
#include "protocol/ack_body.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"

namespace harp {

class AckTracker {
 public:
  explicit AckTracker(Duration delay) : delay_(delay) {}

  /// A DATA or FIN packet arrived; `duplicate` where it had arrived before.
  void on_data(const Header& header, bool duplicate, const Reception& how, Time now);
  /// A packet without data asked for an answer.
  void on_request(const Header& header, const Reception& how, Time now);
  /// Something changed that the sender should know soon: credit.
  void on_update(Time now);

  Time due_at() const { return due_at_; }
  /// Path on which the acknowledgement travels best, of `path_count`: that of the newest arrival;
  /// but when the sender repeats itself, another one each time, since acknowledgements get lost
  /// there.
  PathIndex answer_path(std::size_t path_count) const {
    const std::size_t path = echo_path_ == kNoPath ? 0 : echo_path_;
    return static_cast<PathIndex>((path + repeats_) % path_count);
  }
  /// Fills in everything but window and credit; nothing is due any more.
  void fill(AckBody& ack, Time now);

 private:
  void echo(const Header& header, Time arrival);
  void set_due(Time at) { due_at_ = at < due_at_ ? at : due_at_; }

  Duration delay_;
  Time due_at_ = kNever;
  std::uint32_t packets_ = 0;
  std::uint32_t bytes_ = 0;
  std::uint32_t spurious_ = 0;
  std::uint32_t repeats_ = 0;  ///< Duplicates and requests in a row.
  PathIndex echo_path_ = kNoPath;
  std::uint32_t echo_tx_time_ = 0;
  Time echo_arrival_{};
  std::uint64_t seen_paths_ = 0;     ///< Bit per path that ever carried data.
  std::uint64_t changed_paths_ = 0;  ///< Since they were last reported.
  std::uint64_t astray_paths_ = 0;   ///< Their newest packets came astray.
  std::size_t next_report_ = 0;
  std::array<PathSeq, kMaxPaths> newest_{};
};

}  // namespace harp
