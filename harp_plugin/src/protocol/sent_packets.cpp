#include "protocol/sent_packets.hpp"

#include <cstddef>
#include <cstdint>

#include "base/time.hpp"
#include "protocol/types.hpp"

namespace harp {

SentPackets::SentPackets(Psn first, std::uint32_t window_packets)
    : mask_(window_packets - 1),
      oldest_(first),
      next_(first),
      records_(window_packets),
      acked_(window_packets),
      lists_(kMaxPaths + 1) {}

Psn SentPackets::psn_at(std::uint16_t index) const {
  return oldest_ + ((index - oldest_) & mask_);
}

SentPacket& SentPackets::add() {  // hot
  SentPacket& packet = at(next_++);
  packet = {};
  return packet;
}

void SentPackets::on_sent(Psn psn, PathIndex path, PathSeq path_seq, Time now) {  // hot
  take_off_its_list(psn);
  SentPacket& packet = at(psn);
  packet.state = SentPacket::State::kInFlight;
  packet.path = path;
  packet.path_seq = path_seq;
  packet.sent_at = now;
  append(path, psn);
  ++in_flight_;
}

void SentPackets::on_lost(Psn psn) {
  take_off_its_list(psn);
  at(psn).state = SentPacket::State::kLost;
  append(kLostList, psn);
}

void SentPackets::on_acked(Psn psn) {  // hot
  take_off_its_list(psn);
  at(psn).state = SentPacket::State::kAcked;
  acked_.set(psn);
  while (oldest_ != next_ && at(oldest_).state == SentPacket::State::kAcked) {
    at(oldest_).state = SentPacket::State::kFree;
    acked_.clear(oldest_);
    ++oldest_;
  }
}

void SentPackets::take_off_its_list(Psn psn) {
  const SentPacket& packet = at(psn);
  if (packet.state == SentPacket::State::kInFlight) {
    unlink(packet.path, psn);
    --in_flight_;
  } else if (packet.state == SentPacket::State::kLost) {
    unlink(kLostList, psn);
  }
}

void SentPackets::append(std::size_t list, Psn psn) {
  List& to = lists_[list];
  const auto index = static_cast<std::uint16_t>(psn & mask_);
  if (to.count == 0) {
    to.head = index;
  } else {
    records_[to.tail].next = index;
    records_[index].previous = to.tail;
  }
  to.tail = index;
  ++to.count;
}

void SentPackets::unlink(std::size_t list, Psn psn) {
  List& from = lists_[list];
  const auto index = static_cast<std::uint16_t>(psn & mask_);
  const SentPacket& packet = records_[index];
  if (from.head == index) {
    from.head = packet.next;
  } else {
    records_[packet.previous].next = packet.next;
  }
  if (from.tail == index) {
    from.tail = packet.previous;
  } else {
    records_[packet.next].previous = packet.previous;
  }
  --from.count;
}

}  // namespace harp
