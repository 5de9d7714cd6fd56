// A datapath that shows what passes, and can hold it up.
//
// It keeps what send() took as references until flush(), as the contract of Datapath allows and as
// a NIC does, so that a stack which gives a buffer back too early is found out. A watcher sees
// every packet when it leaves and says whether it does; a blocked tap takes packets and hands none
// over. It can be a NIC whose hash sends some flows to the wrong queue.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/time.hpp"
#include "datapath/datapath.hpp"

namespace harp {

class Tap final : public Datapath {
 public:
  using Watcher = std::function<bool(
      const Route& route, std::span<const std::byte> head, std::span<const std::byte> payload)>;

  explicit Tap(std::unique_ptr<Datapath> below) : below_(std::move(below)) {}

  Watcher watcher;  ///< False: the packet is lost.
  /// Whether a packet of this route comes to another engine's queue; null: none does.
  std::function<bool(const Route& route)> leads_astray;
  bool is_blocked = false;
  bool makes_checksums = false;

  const Address& address() const override { return below_->address(); }
  std::size_t mtu_bytes() const override { return below_->mtu_bytes(); }
  std::uint16_t local_ports() const override { return below_->local_ports(); }
  std::size_t buffer_bytes() const override { return below_->buffer_bytes(); }
  bool has_checksum() const override { return makes_checksums; }
  std::span<const Arrival> receive() override {
    const auto arrivals = below_->receive();
    arrivals_.assign(arrivals.begin(), arrivals.end());
    for (Arrival& arrival : arrivals_) {
      arrival.is_astray = leads_astray && leads_astray(arrival.route);
    }
    return arrivals_;
  }
  std::size_t room() const override { return kRoom - held_.size(); }
  void send(const Route& route,
            std::span<const std::byte> head,
            std::span<const std::byte> payload) override {
    held_.push_back({route, {head.begin(), head.end()}, payload});
  }
  bool flush(Time now) override {
    retry_at_ = kNever;
    if (is_blocked && !held_.empty()) {
      retry_at_ = now + kRetry;
      return false;
    }
    for (const Held& packet : held_) {
      if (!watcher || watcher(packet.route, packet.head, packet.payload)) {
        if (below_->room() == 0) {
          (void)below_->flush(now);
        }
        below_->send(packet.route, packet.head, packet.payload);
      }
    }
    held_.clear();
    return below_->flush(now);
  }
  void discard() override {
    retry_at_ = kNever;
    held_.clear();
    below_->discard();
  }
  Time next_deadline() const override { return std::min(retry_at_, below_->next_deadline()); }
  int descriptor() const override { return below_->descriptor(); }
  bool prepare_to_wait() override { return below_->prepare_to_wait(); }
  DatapathStats stats() const override { return below_->stats(); }

  std::size_t held() const { return held_.size(); }

 private:
  static constexpr std::size_t kRoom = 64;
  static constexpr Duration kRetry = std::chrono::microseconds(50);
  struct Held {
    Route route;
    std::vector<std::byte> head;
    std::span<const std::byte> payload;
  };

  std::unique_ptr<Datapath> below_;
  std::vector<Arrival> arrivals_;
  std::vector<Held> held_;
  Time retry_at_ = kNever;
};

}  // namespace harp
