#include "sender.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/bytes.hpp"
#include "protocol/auth.hpp"
#include "protocol/packet.hpp"

namespace harp_cycles {
namespace {

constexpr std::size_t kPosted = 16;

}  // namespace

Sender::Sender(const Shape& shape) : shape_(shape), buffers_(shape), heads_(shape.burst_packets) {
  for (std::byte& byte : key_) {
    byte = static_cast<std::byte>(rng_());
  }
  for (std::size_t path = 0; path < paths_.count(); ++path) {
    const auto us = std::chrono::microseconds(20 + path);
    paths_.at(static_cast<harp::PathIndex>(path)).rtt.add_sample(us, us, now_);
  }
  pacer_.set_rate(kBytesPerS, shape.packet_bytes());
  flow_.source_mac.fill(std::byte{2});
  flow_.destination_mac.fill(std::byte{4});
  flow_.source = {.ip = {std::byte{192}, std::byte{0}, std::byte{2}, std::byte{1}}, .port = 40000};
  flow_.destination = flow_.source;
  flow_.destination.port = 40001;
  post();
}

void Sender::post() {
  while (queue_.unfinished() < kPosted) {
    queue_.post({.data = buffers_.source(posted_), .tag = 7, .cookie = posted_});
    ++posted_;
  }
  (void)credit_.on_ack(queue_.next());
}

void Sender::copy_burst(Frames& frames, std::size_t first) {
  for (std::size_t i = 0; i < shape_.burst_packets; ++i) {
    const harp::SentPacket& packet = sent_.at(burst_psn_ + static_cast<harp::Psn>(i));
    const auto payload = queue_.payload(packet.msg_seq, packet.msg_off, packet.len);
    const auto rest =
        harp::copy_bytes(heads_[i], frames.room(first + i).subspan(kFrameHeaderBytes));
    (void)harp::copy_bytes(payload, rest);
    frames.set_length(first + i, kFrameHeaderBytes + harp::kHeaderBytes + payload.size());
  }
}

void Sender::acknowledge_all() {
  while (!sent_.all_acked()) {
    queue_.on_acked(sent_.at(sent_.oldest()).msg_seq, events_);
    sent_.on_acked(sent_.oldest());
  }
  harp::Event event;
  while (events_.pop(event)) {
    require(event.kind == harp::Event::Kind::kSendDone, "an event");
  }
  post();
}

void Sender::check_packet(std::span<const std::byte> bytes,
                          harp::Psn psn,
                          std::span<const std::byte> payload) const {
  const auto view = harp::parse_packet(bytes);
  require(view && view->header.psn == psn && view->header.dst_cid == kCid &&
              std::ranges::equal(view->body, payload),
          "a packet that is another one");
  require(harp::is_authentic(key_, *view), "a packet with a wrong MAC");
}

}  // namespace harp_cycles
