#include "datapath/faulty.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace harp {
namespace {

constexpr std::size_t kIpUdpBytes = 28;
constexpr std::size_t kMaxPaths = 64;

}  // namespace

FaultyDatapath::FaultyDatapath(std::unique_ptr<Datapath> below, const FaultSpec& spec)
    : below_(std::move(below)), impairment_(spec.impairment, spec.seed) {}

void FaultyDatapath::send(const Route& route,
                          std::span<const std::byte> head,
                          std::span<const std::byte> payload) {
  const std::size_t ip_bytes = head.size() + payload.size() + kIpUdpBytes;
  const auto fate = impairment_.decide(route.local_port % kMaxPaths, ip_bytes, now_);
  if (!fate) {
    return;
  }
  if (fate->at <= now_ && !fate->copy_at && !fate->is_damaged && delayed_.empty()) {
    return below_->send(route, head, payload);
  }
  std::vector<std::byte> packet(head.begin(), head.end());
  packet.insert(packet.end(), payload.begin(), payload.end());
  if (fate->copy_at) {
    delay(*fate->copy_at, route, packet);
  }
  if (fate->is_damaged) {
    impairment_.damage(packet);
  }
  delay(fate->at, route, std::move(packet));
}

void FaultyDatapath::delay(Time at, const Route& route, std::vector<std::byte> packet) {
  delayed_.emplace(at, Delayed{route, std::move(packet)});
}

/// Passes on what is due. False: no room below.
bool FaultyDatapath::release() {
  while (!delayed_.empty() && delayed_.begin()->first <= now_) {
    Delayed& next = delayed_.begin()->second;
    if (below_->room() == 0) {
      return false;
    }
    below_->send(next.route, {}, next.packet);
    released_.push_back(std::move(next.packet));  // Its bytes stay where they are.
    delayed_.erase(delayed_.begin());
  }
  return true;
}

bool FaultyDatapath::flush(Time now) {
  now_ = std::max(now_, now);
  bool all_released = false;
  do {
    all_released = release();
    if (!below_->flush(now)) {
      return false;
    }
    released_.clear();
  } while (!all_released);
  return true;
}

void FaultyDatapath::discard() {
  below_->discard();
  released_.clear();
}

Time FaultyDatapath::next_deadline() const {
  return std::min(below_->next_deadline(), delayed_.empty() ? kNever : delayed_.begin()->first);
}

}  // namespace harp
