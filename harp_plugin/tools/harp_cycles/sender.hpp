// The stages of transmitting, from the protocol's own parts, put together as a session and a
// datapath do it. Each can be left out, so that what a stage costs is what the loop takes longer
// with it: stages overlap in a core, and what one has read the next finds in the cache.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.hpp"
#include "base/rng.hpp"
#include "base/time.hpp"
#include "bench.hpp"
#include "buffers.hpp"
#include "datapath/frame.hpp"
#include "frames.hpp"
#include "protocol/ack_body.hpp"
#include "protocol/auth.hpp"
#include "protocol/events.hpp"
#include "protocol/pacer.hpp"
#include "protocol/packet.hpp"
#include "protocol/path_set.hpp"
#include "protocol/send_credit.hpp"
#include "protocol/send_queue.hpp"
#include "protocol/sent_packets.hpp"
#include "protocol/types.hpp"
#include "shape.hpp"

namespace harp_cycles {

/// Bits of what is done beside cutting messages into packets and recording them.
namespace send_part {
inline constexpr unsigned kPath = 1;
inline constexpr unsigned kPacing = 2;
inline constexpr unsigned kSeal = 4;
inline constexpr unsigned kCrc = 8;
inline constexpr unsigned kCopy = 16;
inline constexpr unsigned kHeaders = 32;
inline constexpr unsigned kAll = 63;
}  // namespace send_part

inline constexpr harp::Cid kCid = 0x5eed0003;  // Slot 3.
inline constexpr harp::Psn kFirstPsn = 0xfffff000;
inline constexpr harp::MsgSeq kFirstMessage = 1;

class Sender {
 public:
  explicit Sender(const Shape& shape);

  /// Sends a burst; its first frame is `first`.
  template <unsigned Parts>
  void burst(Frames& frames, std::size_t first);
  /// Copies the last burst into its frames, for loops that leave that out: the caches see the same.
  void copy_burst(Frames& frames, std::size_t first);
  /// Everything that was sent is acknowledged.
  void acknowledge_all();
  /// Throws unless the frames of the burst that began at `first` are what they should be.
  template <unsigned Parts>
  void check(Frames& frames, std::size_t first);

  /// See Buffers.
  void absorb(std::span<const std::byte> bytes) { buffers_.absorb(bytes); }

  const harp::Key& key() const { return key_; }
  harp::Time now() const { return now_; }
  std::uint64_t checked() const { return checked_; }

 private:
  void check_packet(std::span<const std::byte> bytes,
                    harp::Psn psn,
                    std::span<const std::byte> payload) const;
  void post();
  harp::PathIndex choose_path();
  harp::Psn cut_and_record();

  Shape shape_;
  Buffers buffers_;
  harp::Key key_{};
  harp::Rng rng_{1};
  harp::Time now_{std::chrono::seconds(1)};
  harp::EventQueue events_{256};
  harp::SendQueue queue_{kFirstMessage, 256};
  harp::SentPackets sent_{kFirstPsn, harp::kMaxWindowPackets};
  harp::SendCredit credit_{kFirstMessage, 186, 256};
  harp::PathSet paths_{8, 8};
  harp::Pacer pacer_;
  harp::FrameFlow flow_;
  std::vector<std::array<std::byte, harp::kHeaderBytes>> heads_;  ///< Of the last burst.
  std::vector<std::byte> whole_;  ///< A packet to be checked that was not copied into a frame.
  harp::Psn burst_psn_ = kFirstPsn;
  std::uint64_t posted_ = 0;
  std::uint64_t checked_ = 0;
};

inline harp::PathIndex Sender::choose_path() {
  return paths_.choose(
      rng_, harp::kNoPath, [this](harp::PathIndex path) { return sent_.in_flight_on(path); });
}

inline harp::Psn Sender::cut_and_record() {
  const harp::MsgSeq message = queue_.cutting();
  const harp::Psn psn = sent_.next();
  require(credit_.permits(message, psn, queue_.is_at_start()), "a sender without credit");
  if (queue_.is_at_start()) {
    credit_.on_message_started(message, psn);
  }
  harp::SentPacket& packet = sent_.add();
  packet.msg_seq = message;
  packet.msg_off = queue_.cut_off();
  packet.len = queue_.cut_len(shape_.pss);
  packet.flags = queue_.cut(packet.len);
  return psn;
}

template <unsigned Parts>
void Sender::burst(Frames& frames, std::size_t first) {
  now_ += kBurstInterval;
  burst_psn_ = sent_.next();
  const harp::PathIndex path = (Parts & send_part::kPath) != 0 ? choose_path() : harp::PathIndex{0};
  for (std::size_t i = 0; i < shape_.burst_packets; ++i) {
    if constexpr ((Parts & send_part::kPacing) != 0) {
      require(pacer_.may_send(now_, queue_.uncut_bytes()), "a pacer that holds back");
    }
    const harp::Psn psn = cut_and_record();
    const harp::PathSeq path_seq = paths_.at(path).next_seq++;
    sent_.on_sent(psn, path, path_seq, now_);
    const harp::SentPacket& packet = sent_.at(psn);
    const auto payload = queue_.payload(packet.msg_seq, packet.msg_off, packet.len);
    if constexpr ((Parts & send_part::kSeal) != 0) {
      constexpr bool kHasCrc = (Parts & send_part::kCrc) != 0;
      const harp::Header header{
          .type = harp::PacketType::kData,
          .flags = static_cast<std::uint8_t>(packet.flags | (kHasCrc ? harp::flag::kCrc : 0)),
          .path = path,
          .dst_cid = kCid,
          .psn = psn,
          .path_seq = path_seq,
          .msg_seq = packet.msg_seq,
          .msg_off = packet.msg_off,
          .len = packet.len,
          .tag = queue_.tag(packet.msg_seq),
          .tx_time = harp::wire_time(now_)};
      harp::seal_packet(key_, header, payload, heads_[i]);
    }
    if constexpr ((Parts & send_part::kPacing) != 0) {
      pacer_.on_sent(packet.len + harp::kHeaderBytes + harp::kIpUdpBytes, now_);
    }
    if constexpr ((Parts & send_part::kCopy) != 0) {
      const std::size_t bytes = kFrameHeaderBytes + harp::kHeaderBytes + payload.size();
      const auto frame = frames.room(first + i).first(bytes);
      harp::copy_bytes(payload, harp::copy_bytes(heads_[i], frame.subspan(kFrameHeaderBytes)));
      frames.set_length(first + i, bytes);
      if constexpr ((Parts & send_part::kHeaders) != 0) {
        harp::write_frame_headers(flow_, frame);
      }
    }
  }
  require(sent_.next() - burst_psn_ == shape_.burst_packets, "a burst that is not full");
}

template <unsigned Parts>
void Sender::check(Frames& frames, std::size_t first) {
  for (std::size_t i = 0; i < shape_.burst_packets; ++i) {
    const harp::Psn psn = burst_psn_ + static_cast<harp::Psn>(i);
    const harp::SentPacket& packet = sent_.at(psn);
    require(packet.state == harp::SentPacket::State::kInFlight && packet.sent_at == now_,
            "a packet without a record");
    const auto payload = queue_.payload(packet.msg_seq, packet.msg_off, packet.len);
    const auto expected = buffers_.source(packet.msg_seq - kFirstMessage);
    require(payload.data() == expected.data() + packet.msg_off && payload.size() == shape_.pss,
            "another payload");
    if constexpr ((Parts & send_part::kSeal) != 0) {
      std::span<const std::byte> bytes;
      if constexpr ((Parts & send_part::kCopy) != 0) {
        bytes = frames.packet(first + i);
      } else {
        whole_.assign(heads_[i].begin(), heads_[i].end());
        whole_.insert(whole_.end(), payload.begin(), payload.end());
        bytes = whole_;
      }
      if constexpr ((Parts & send_part::kHeaders) != 0) {
        const auto frame = harp::parse_frame(frames.frame(first + i));
        require(frame && frame->destination() == flow_.destination &&
                    frame->payload.size() == bytes.size(),
                "a frame that nobody would take");
      }
      check_packet(bytes, psn, payload);
    }
    ++checked_;
  }
  if constexpr ((Parts & send_part::kPacing) != 0) {
    require(!pacer_.may_send(now_, queue_.uncut_bytes()), "a pacer that does not pace");
  }
}

}  // namespace harp_cycles
