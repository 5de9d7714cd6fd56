#include "sim/shared_link.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/time.hpp"
#include "protocol/packet.hpp"
#include "protocol/session.hpp"
#include "sim/bottleneck.hpp"
#include "sim/host.hpp"
#include "sim/tcp_bbr.hpp"
#include "sim/tcp_cubic.hpp"
#include "sim/tcp_flow.hpp"
#include "sim/world.hpp"

namespace harp::sim {
namespace {

constexpr std::uint64_t kSharedListenId = 7;
constexpr Secret kSharedSecret{std::byte{0x5e}};
constexpr std::size_t kMessageBytes = std::size_t{1} << 20;
constexpr std::size_t kMessages = 8;
constexpr Duration kSampleInterval = std::chrono::microseconds(500);

BottleneckConfig bottleneck_config(const SharedLinkConfig& config) {
  return {
      .bits_per_s = config.bits_per_s,
      .queue_bytes = static_cast<std::size_t>(config.bits_per_s / 8 * seconds(config.queue)) + 1600,
      .delay = config.round_trip / 2};
}

/// As endpoint/network.cpp makes it for UDP.
SessionConfig as_over_udp(SessionConfig config, bool competes) {
  config.payload_crc = false;
  config.competes = competes;
  config.queue_allowance = std::chrono::microseconds(300);
  config.min_rto = std::chrono::milliseconds(10);
  return config;
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

double Shares::harp_sum() const {
  return sum(harp);
}

double Shares::tcp_sum() const {
  return sum(tcp);
}

double fairness(const std::vector<double>& shares) {
  double squares = 0;
  for (const double share : shares) {
    squares += share * share;
  }
  const double total = sum(shares);
  return squares > 0 ? total * total / (squares * static_cast<double>(shares.size())) : 0;
}

void EndlessTraffic::on_accept(Session& session, Time now) {
  session_ = &session;
  buffer_.resize(sends_ ? kMessageBytes : kMessageBytes * kMessages);
  post(session, now);
}

void EndlessTraffic::on_event(Session& session, const Event& event, Time now) {
  has_failed_ = has_failed_ || event.kind == Event::Kind::kFailed;
  if (event.kind == Event::Kind::kSendDone || event.kind == Event::Kind::kReceiveDone) {
    --posted_;
  }
  post(session, now);
}

void EndlessTraffic::post(Session& session, Time now) {
  for (; posted_ < kMessages && !is_over_; ++posted_) {
    const PostResult result = sends_
                                  ? session.post_send({.data = buffer_, .tag = 0, .cookie = 0}, now)
                                  : session.post_receive({.buffer = buffer_, .cookie = 0}, now);
    if (result != PostResult::kPosted) {
      return;
    }
  }
}

std::uint64_t EndlessTraffic::received_bytes() const {
  return session_ == nullptr ? 0 : session_->stats().data_bytes_received;
}

SharedLink::Pair::Pair(SharedLink& link, std::uint64_t number)
    : sender(true),
      receiver(false),
      up(link.simulator_, {}, number * 2 + 1),
      down(link.simulator_, {.delay = link.config_.round_trip / 2}, number * 2 + 2),
      client(link.simulator_, "client", up, sender),
      server(link.simulator_, "server", down, receiver),
      seed(number),
      competes(link.config_.competes) {
  flow = link.link_.add_flow(
      [this](const Bottleneck::Packet& packet, Time now) { server.on_packet(packet.bytes, now); });
  up.connect([this, &link](std::span<const std::byte> packet, Time) {
    link.link_.send(
        flow, packet.size() + kIpUdpBytes, {.number = 0, .bytes = {packet.begin(), packet.end()}});
  });
  down.connect(
      [this](std::span<const std::byte> packet, Time now) { client.on_packet(packet, now); });
}

void SharedLink::Pair::start() {
  server.listen(kSharedListenId, kSharedSecret, as_over_udp(session_config(false, seed), competes));
  session = &client.connect(
      as_over_udp(session_config(true, seed), competes), kSharedSecret, kSharedListenId);
}

SharedLink::SharedLink(const SharedLinkConfig& config)
    : config_(config), link_(simulator_, bottleneck_config(config)) {
  simulator_.schedule(Time{}, *this, kSample);
}

void SharedLink::add_harp(Time from, Time until) {
  const std::uint64_t token = 2 * pairs_.size();
  pairs_.push_back(std::make_unique<Pair>(*this, config_.seed * 100 + pairs_.size()));
  simulator_.schedule(from, *this, token);
  if (until != kNever) {
    simulator_.schedule(until, *this, token + 1);
  }
}

void SharedLink::add_cubic(Time from, Time until) {
  add_tcp(std::make_unique<TcpCubic>(), from, until);
}

void SharedLink::add_bbr(Time from, Time until) {
  add_tcp(std::make_unique<TcpBbr>(config_.seed * 100 + tcp_.size()), from, until);
}

void SharedLink::add_tcp(std::unique_ptr<TcpControl> control, Time from, Time until) {
  tcp_.push_back(
      std::make_unique<TcpFlow>(simulator_, link_, std::move(control), config_.round_trip / 2));
  tcp_.back()->run(from, until);
}

void SharedLink::act(Time now, std::uint64_t token) {
  if (token == kSample) {
    const double queue_s = seconds(link_.queue_delay());
    queue_sum_s_ += queue_s;
    max_queue_s_ = std::max(max_queue_s_, queue_s);
    ++samples_;
    simulator_.schedule(now + kSampleInterval, *this, kSample);
    return;
  }
  Pair& pair = *pairs_[token / 2];
  if (token % 2 == 1) {
    pair.sender.stop();
    return;
  }
  pair.start();
  pair.sender.on_accept(*pair.session, now);
  pair.client.pump(now);
}

void SharedLink::run_until(Time at) {
  simulator_.run_until([&] { return simulator_.now() >= at; }, at + kSampleInterval, ~0ULL);
}

std::vector<std::uint64_t> SharedLink::harp_bytes() const {
  std::vector<std::uint64_t> bytes;
  for (const auto& pair : pairs_) {
    bytes.push_back(pair->receiver.received_bytes());
  }
  return bytes;
}

std::vector<std::uint64_t> SharedLink::tcp_bytes() const {
  std::vector<std::uint64_t> bytes;
  for (const auto& flow : tcp_) {
    bytes.push_back(flow->delivered_bytes());
  }
  return bytes;
}

Shares SharedLink::measure_until(Time at) {
  const Time from = simulator_.now();
  const auto harp_before = harp_bytes();
  const auto tcp_before = tcp_bytes();
  queue_sum_s_ = 0;
  max_queue_s_ = 0;
  samples_ = 0;
  run_until(at);
  const double capacity_bytes = config_.bits_per_s / 8 * seconds(simulator_.now() - from);
  const auto shares = [&](const auto& after, const auto& before) {
    std::vector<double> result;
    for (std::size_t i = 0; i < after.size(); ++i) {
      result.push_back(static_cast<double>(after[i] - before[i]) / capacity_bytes);
    }
    return result;
  };
  return {.harp = shares(harp_bytes(), harp_before),
          .tcp = shares(tcp_bytes(), tcp_before),
          .mean_queue_s = samples_ > 0 ? queue_sum_s_ / static_cast<double>(samples_) : 0,
          .max_queue_s = max_queue_s_};
}

}  // namespace harp::sim
