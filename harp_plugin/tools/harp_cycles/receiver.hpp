// The stages of receiving, in the same way: see sender.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "bench.hpp"
#include "buffers.hpp"
#include "datapath/frame.hpp"
#include "frames.hpp"
#include "protocol/ack_tracker.hpp"
#include "protocol/auth.hpp"
#include "protocol/events.hpp"
#include "protocol/message_receiver.hpp"
#include "protocol/packet.hpp"
#include "protocol/receive_window.hpp"
#include "sender.hpp"
#include "shape.hpp"

namespace harp_cycles {

/// Bits of what is done beside parsing a packet, finding its session and checking its MAC.
namespace receive_part {
inline constexpr unsigned kPlacement = 1;
inline constexpr unsigned kCopy = 2;
inline constexpr unsigned kFrame = 4;
}  // namespace receive_part

class Receiver {
 public:
  Receiver(const Shape& shape, const harp::Key& key);

  /// Takes `count` frames, from `first` on.
  template <unsigned Parts>
  void burst(Frames& frames, std::size_t first, std::size_t count, harp::Time now);
  /// Checks completed messages and posts others; what an acknowledgement resets is reset.
  void settle(bool was_copied, harp::Time now);

  /// See Buffers.
  void absorb(std::span<const std::byte> bytes) { buffers_.absorb(bytes); }

  std::uint64_t checked() const { return checked_; }

 private:
  void post();

  Shape shape_;
  Buffers buffers_;
  std::vector<std::optional<harp::Key>> sessions_;  ///< By slot, as a stack has them.
  harp::EventQueue events_{512};
  harp::ReceiveWindow window_{kFirstPsn, harp::kMaxWindowPackets};
  harp::MessageReceiver receiver_{{}};
  harp::AckTracker tracker_{harp::Duration(25000)};
  std::uint64_t posted_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t checked_ = 0;
};

template <unsigned Parts>
void Receiver::burst(Frames& frames, std::size_t first, std::size_t count, harp::Time now) {
  constexpr harp::Cid kSlotMask = 0xfff;
  for (std::size_t i = first; i < first + count; ++i) {
    std::span<const std::byte> packet;
    if constexpr ((Parts & receive_part::kFrame) != 0) {
      const auto frame = harp::parse_frame(frames.frame(i));
      require(frame.has_value(), "a frame that is none");
      packet = frame->payload;
    } else {
      packet = frames.packet(i);
    }
    const harp::Cid slot = harp::peek_cid(packet).value_or(0) & kSlotMask;
    require(slot < sessions_.size() && sessions_[slot], "a stranger");
    const auto view = harp::parse_packet(packet);
    require(view && view->header.dst_cid == kCid, "a packet that is none");
    require(harp::is_authentic(*sessions_[slot], *view), "a forged packet");
    if constexpr ((Parts & receive_part::kPlacement) != 0) {
      require(window_.examine(view->header.psn) == harp::ReceiveWindow::Verdict::kNew,
              "a packet that was there");
      harp::Placement placement;
      require(
          receiver_.on_data(*view, events_, placement) == harp::MessageReceiver::Verdict::kTaken,
          "a packet without a place");
      window_.accept(view->header.psn);
      tracker_.on_data(view->header, false, {}, now);
      if constexpr ((Parts & receive_part::kCopy) != 0) {
        std::memcpy(placement.to, placement.payload.data(), placement.payload.size());
      }
    }
  }
}

}  // namespace harp_cycles
