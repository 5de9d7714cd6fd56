#include "sim/host.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>

#include "base/time.hpp"
#include "protocol/listener.hpp"
#include "protocol/packet.hpp"
#include "protocol/session.hpp"
#include "sim/simulator.hpp"
#include "sim/wire.hpp"

namespace harp::sim {
namespace {

const char* type_name(PacketType type) {
  constexpr auto kNames = std::to_array<const char*>({"?",
                                                      "DATA",
                                                      "ACK",
                                                      "SYN",
                                                      "SYNACK",
                                                      "CONF",
                                                      "FIN",
                                                      "RST",
                                                      "PROBE",
                                                      "PROBEACK",
                                                      "HEARTBEAT"});
  return kNames[static_cast<std::size_t>(type)];
}

}  // namespace

Host::Host(Simulator& simulator, const char* name, Wire& out, Application& application)
    : simulator_(simulator), name_(name), out_(out), application_(application) {}

void Host::listen(std::uint64_t listen_id, const Secret& secret, const SessionConfig& config) {
  listener_.emplace(listen_id, secret, 64);
  secret_ = secret;
  accept_config_ = config;
}

Session& Host::connect(const SessionConfig& config, const Secret& secret, std::uint64_t listen_id) {
  sessions_.push_back(std::make_unique<Session>(config, secret, listen_id, simulator_.now()));
  wake_at(simulator_.now());
  return *sessions_.back();
}

void Host::on_packet(std::span<const std::byte> packet, Time now) {
  if (is_dead(now)) {
    return;
  }
  if (is_paused(now)) {
    if (waiting_.size() < buffer_packets_) {
      waiting_.push_back({.packet = {packet.begin(), packet.end()}, .arrival = now});
    }
    return;
  }
  take(packet, now, now);
  pump(now);
}

void Host::take(std::span<const std::byte> packet, Time arrival, Time now) {
  trace_packet("recv", packet, now);
  Session* session = session_for(packet, now);
  if (session == nullptr) {
    return;
  }
  // It comes by the queues of two engines in turn: the client's paths move.
  const bool astray = ++taken_ % 2 == 0;
  const Placement placement =
      session->on_packet(packet, now, {.is_astray = astray, .waited = now - arrival});
  if (placement.action == Placement::Action::kCopy) {
    if (!placement.payload.empty()) {
      std::memcpy(placement.to, placement.payload.data(), placement.payload.size());
    }
  } else if (placement.action == Placement::Action::kTake) {
    placement.taker.show(placement.msg_off, placement.payload);
  }
}

Session* Host::session_for(std::span<const std::byte> packet, Time now) {
  const auto view = parse_packet(packet);
  if (!view) {
    return nullptr;
  }
  Cid cid = view->header.dst_cid;
  if (view->header.type == PacketType::kSyn && listener_) {
    const Listener::Answer answer = listener_->on_packet(packet);
    if (answer.verdict == Listener::Verdict::kNew) {
      SessionConfig config = accept_config_;
      config.local_cid += accepted_ << 8;
      config.nonce[15] = static_cast<std::byte>(++accepted_);
      config.seed += accepted_;
      sessions_.push_back(
          std::make_unique<Session>(config, secret_, answer.syn, answer.tx_time, now));
      listener_->add(answer.syn.nonce, config.local_cid);
      application_.on_accept(*sessions_.back(), now);
      return nullptr;
    }
    cid = answer.cid;
  }
  for (const auto& session : sessions_) {
    if (session->local_cid() == cid) {
      return session.get();
    }
  }
  return nullptr;
}

void Host::act(Time now, std::uint64_t) {
  if (period_ > Duration::zero() && now >= paused_until_) {
    pause(paused_from_ + period_, paused_until_ + period_);
  }
  if (now >= wake_at_) {
    wake_at_ = kNever;
  }
  if (is_dead(now)) {
    return;
  }
  if (is_paused(now)) {
    wake_at(paused_until_);
    return;
  }
  for (; !waiting_.empty(); waiting_.pop_front()) {
    take(waiting_.front().packet, waiting_.front().arrival, now);
  }
  pump(now);
}

void Host::pump(Time now) {
  if (is_dead(now) || is_paused(now)) {
    return;
  }
  do {
    transmit(now);
  } while (deliver_events(now));
  Time next = kNever;
  for (const auto& session : sessions_) {
    next = std::min(next, session->next_deadline());
  }
  wake_at(next);
}

bool Host::deliver_events(Time now) {
  bool had_events = false;
  // By index: on_event() may connect another session.
  for (std::size_t i = 0; i < sessions_.size(); ++i) {
    Session& session = *sessions_[i];
    Event event;
    while (session.poll_event(event)) {
      had_events = true;
      application_.on_event(session, event, now);
    }
  }
  return had_events;
}

void Host::transmit(Time now) {
  TransmitPacket packet;
  for (const auto& session : sessions_) {
    while (session->poll_transmit(now, packet)) {
      const auto head = std::span<const std::byte>(packet.head).first(packet.head_bytes);
      trace_packet("send", head, now);
      out_.send(packet.path, head, packet.payload);
    }
  }
}

void Host::wake_at(Time at) {
  if (at == kNever || at >= wake_at_) {
    return;  // An earlier call will look again.
  }
  wake_at_ = std::max(at, simulator_.now());
  simulator_.schedule(wake_at_, *this, 0);
}

void Host::pause(Time from, Time until) {
  paused_from_ = from;
  paused_until_ = until;
  simulator_.schedule(until, *this, 0);
}

void Host::share_core(Time from, Duration turn, Duration period, std::size_t buffer_packets) {
  period_ = period;
  buffer_packets_ = buffer_packets;
  pause(from + turn, from + period);
}

void Host::die(Time at) {
  dies_at_ = at;
}

bool Host::all_finished() const {
  return std::ranges::all_of(sessions_, [](const auto& session) { return session->is_finished(); });
}

void Host::trace_packet(const char* what, std::span<const std::byte> packet, Time now) const {
  if (trace_ == nullptr || packet.size() < kHeaderBytes) {
    return;
  }
  // `send` shows the head alone, whose length field may promise a payload: read the header anyway.
  std::vector<std::byte> whole(packet.begin(), packet.end());
  std::uint16_t len = 0;
  std::memcpy(&len, whole.data() + 24, sizeof(len));
  whole.resize(kHeaderBytes + len);
  const auto view = parse_packet(whole);
  const double at_ms = seconds(now.time_since_epoch()) * 1e3;
  if (!view) {
    std::fprintf(trace_, "%12.6f ms %s %s damaged\n", at_ms, name_, what);
    return;
  }
  const Header& header = view->header;
  std::fprintf(trace_,
               "%12.6f ms %s %s %-9s path %u seq %u psn %u msg %u off %u len %u flags %02x\n",
               at_ms,
               name_,
               what,
               type_name(header.type),
               header.path,
               header.path_seq,
               header.psn,
               header.msg_seq,
               header.msg_off,
               header.len,
               header.flags);
}

}  // namespace harp::sim
