#include "sim/simulator.hpp"

#include <algorithm>
#include <cstdint>

#include "base/time.hpp"

namespace harp::sim {

void Simulator::schedule(Time at, Actor& actor, std::uint64_t token) {
  queue_.push({.at = std::max(at, now_), .order = order_++, .actor = &actor, .token = token});
}

bool Simulator::step() {
  if (queue_.empty()) {
    return false;
  }
  const Entry entry = queue_.top();
  queue_.pop();
  now_ = entry.at;
  ++events_;
  entry.actor->act(now_, entry.token);
  return true;
}

}  // namespace harp::sim
