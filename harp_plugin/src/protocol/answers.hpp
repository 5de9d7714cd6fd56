// Answers that this end owes without an acknowledgement: to a probe, and resets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/time.hpp"
#include "protocol/control_packet.hpp"
#include "protocol/handshake.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"

namespace harp {

class Answers {
 public:
  bool any() const { return resets_ > 0 || probed_path_; }
  bool any_resets() const { return resets_ > 0; }

  /// A probe has come, which was on this host for `waited`. The newest one is answered.
  void on_probe(const Header& header, Duration waited) {
    probed_path_ = header.path;
    echo_ = {.tx_time = header.tx_time, .delay = wire_duration(waited)};
  }
  /// A RST on each of `paths` paths: one may swallow it, and nobody acknowledges it.
  void reset_on_all(SessionError reason, std::size_t paths) {
    reason_ = reason;
    resets_ = paths;
  }
  void reset_on(SessionError reason, PathIndex path) {
    reason_ = reason;
    resets_ = std::max<std::size_t>(resets_, 1);
    reset_path_ = path;
  }

  /// Makes the next RST that is due. False: none is.
  bool take_reset(std::size_t paths, ControlPacket& packet) {
    if (resets_ == 0) {
      return false;
    }
    --resets_;
    packet.type = PacketType::kRst;
    packet.path = static_cast<PathIndex>(reset_path_++ % paths);
    packet.body_bytes = encode_reset(reason_, packet.buffer);
    return true;
  }
  /// Makes the answer to the newest probe. False: it was answered.
  bool take_probe_answer(std::size_t paths, ControlPacket& packet) {
    if (!probed_path_) {
      return false;
    }
    packet.type = PacketType::kProbeAck;
    packet.path = static_cast<PathIndex>(*probed_path_ % paths);
    packet.body_bytes = encode_echo(echo_, packet.buffer);
    probed_path_.reset();
    return true;
  }

 private:
  SessionError reason_ = SessionError::kNone;
  std::size_t resets_ = 0;
  PathIndex reset_path_ = 0;
  std::optional<PathIndex> probed_path_;
  Echo echo_;
};

}  // namespace harp
