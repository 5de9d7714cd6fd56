#include "runtime/stack.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/counter.hpp"
#include "base/prefetch.hpp"
#include "base/time.hpp"
#include "datapath/datapath.hpp"
#include "protocol/events.hpp"
#include "protocol/handle.hpp"
#include "protocol/handshake.hpp"
#include "protocol/listener.hpp"
#include "protocol/packet.hpp"
#include "protocol/session.hpp"
#include "runtime/backlog.hpp"
#include "runtime/channel.hpp"
#include "runtime/counter_tables.hpp"
#include "runtime/random.hpp"
#include "sync/doorbells.hpp"

namespace harp {
namespace {

/// A cid is the slot of a session and a random generation, which a stale or forged packet misses.
constexpr int kSlotBits = 12;
constexpr Cid kSlotMask = (Cid{1} << kSlotBits) - 1;
static_assert(Stack::kMaxSessions == kSlotMask + 1);

/// One session sends so many in one turn; then it is the others' turn.
constexpr int kMaxPacketsPerTurn = 90;
/// So many of a session leave before what others have: an application waits for them, and the
/// kernel takes its time over every packet. Acknowledgements do not wait for more: their echoes are
/// timed.
constexpr std::size_t kFewPackets = 8;
constexpr std::size_t kIpv6ExtraBytes = 20;

/// What a receiver holds of messages that nobody asked for, and what may be in flight.
constexpr std::size_t kEagerBytes = std::size_t{256} << 10;
constexpr std::size_t kMinEagerPackets = 16;
constexpr std::size_t kWindowBytes = std::size_t{6} << 20;
constexpr std::size_t kMinWindowPackets = 64;

std::uint32_t window_packets(std::uint16_t pss) {
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(
      std::bit_floor(kWindowBytes / pss), kMinWindowPackets, kMaxWindowPackets));
}

}  // namespace

struct Stack::Entry {
  Slot slot = 0;
  std::unique_ptr<Session> session;
  std::shared_ptr<Channel> channel;  ///< Null once the application has closed.
  std::uint64_t listen_id = 0;       ///< The listener that it came to; 0: none.
  std::size_t sends = 0;             ///< Posted, and not complete.
  bool has_posts_left = false;       ///< The session took no more of them.
  bool is_marked = false;
  bool has_received = false;  ///< A receive was completed in this turn.
  bool goes_on = false;       ///< Has more to transmit than one turn allows.
  bool is_client = false;     ///< Chooses its flows; a server answers on them.
  /// By path. What a server knows, it knows from its client's packets.
  std::array<Route, kMaxPaths> routes;
  std::uint64_t known_routes = 0;

  /// A client's flow is the local port: see PathSet.
  const Route& route(const TransmitPacket& packet) {
    if (is_client) {
      routes[packet.path].local_port = packet.flow;
    }
    return route(packet.path);
  }
  const Route& route(PathIndex path) const {
    const bool is_known = ((known_routes >> path) & 1) != 0;
    return is_known ? routes[path] : first_route();
  }
  const Route& first_route() const {
    return routes[static_cast<std::size_t>(std::countr_zero(known_routes))];
  }
  /// The first packet of a path says where its answers go, that of the session to which host; only
  /// new data may move a path to another port (docs/harp/threat-model.md).
  void learn(PathIndex path, const Route& way, bool is_update) {  // hot
    if (path >= kMaxPaths) {
      return;
    }
    const bool is_known = ((known_routes >> path) & 1) != 0;
    const Route& old = routes[path];
    const bool has_moved = way.peer.port != old.peer.port || way.local_port != old.local_port;
    const bool is_wanted = !is_known || (has_moved && is_update);
    if (is_wanted && (known_routes == 0 || way.peer.ip == first_route().peer.ip)) {
      routes[path] = way;
      known_routes |= std::uint64_t{1} << path;
    }
  }
};

Stack::Stack(std::unique_ptr<Datapath> datapath, StackConfig config)
    : datapath_(std::move(datapath)), config_(std::move(config)) {}

Stack::~Stack() {
  for (const auto& entry : entries_) {
    if (entry != nullptr && entry->channel != nullptr) {
      entry->channel->end(SessionError::kCancelled);
    }
  }
}

bool Stack::turn(Time now) {  // hot
  ++stats_.turns;
  is_blocked_ = !datapath_->flush(now);
  bool worked = !marked_.empty();
  if (take_posts(now)) {
    worked = true;
    transmit_few(now);
  }
  worked = take_packets(now) || worked;
  worked = wake_due(now) || worked;
  if (!worked) {
    ++stats_.idle_turns;
    return false;
  }
  tell_applications();
  transmit(now);
  settle(now);
  return true;
}

Time Stack::next_deadline() const {
  constexpr Time kAtOnce{};
  const Time due = marked_.empty() ? next_due_ : kAtOnce;
  return is_blocked_ ? datapath_->next_deadline() : std::min(due, datapath_->next_deadline());
}

// --- A turn -------------------------------------------------------------------------------------

bool Stack::take_posts(Time now) {
  return bells_.collect([&](std::size_t bell) {
    if (bell < entries_.size() && entries_[bell] != nullptr) {
      mark(*entries_[bell]);
      (void)post(*entries_[bell], now);
    }
  });
}

/// Gives the session what the application posted. False: nothing, or it takes no more.
bool Stack::post(Entry& entry, Time now) {
  entry.has_posts_left = false;
  bool posted = false;
  while (entry.channel != nullptr) {
    const Channel::Post* const next = entry.channel->next_post();
    if (next == nullptr) {
      break;
    }
    const PostResult result =
        next->is_send
            ? entry.session->post_send(
                  {.data = {next->data, next->bytes}, .tag = next->tag, .cookie = next->request},
                  now)
            : entry.session->post_receive({.buffer = {next->data, next->bytes},
                                           .taker = next->taker,
                                           .cookie = next->request},
                                          now);
    switch (result) {
      case PostResult::kPosted:
        entry.sends += next->is_send ? 1 : 0;
        break;
      case PostResult::kFull:
        entry.has_posts_left = true;
        return posted;
      case PostResult::kTooLong:
        entry.channel->complete(next->request, {.error = SessionError::kMessageTooLong});
        break;
      case PostResult::kEnded: {
        const SessionError error = entry.session->error();
        entry.channel->complete(
            next->request,
            {.error = error == SessionError::kNone ? SessionError::kPeerClosed : error});
        break;
      }
    }
    entry.channel->pop_post();
    posted = true;
  }
  return posted;
}

bool Stack::take_packets(Time& now) {  // hot
  const auto arrivals = datapath_->receive();
  if (!arrivals.empty() && config_.clock != nullptr) {
    now = std::max(now, config_.clock());
  }
  for (const Arrival& arrival : arrivals) {
    take_packet(arrival, now);
  }
  return !arrivals.empty();
}

void Stack::take_packet(const Arrival& arrival, Time now) {  // hot
  const auto cid = peek_cid(arrival.packet);
  Entry* entry = nullptr;
  if (cid && *cid != 0) {
    const Slot slot = *cid & kSlotMask;
    entry = slot < entries_.size() ? entries_[slot].get() : nullptr;
  } else if (cid) {
    entry = on_syn(arrival, now);
  }
  if (entry == nullptr) {
    ++stats_.strangers;
    return;
  }
  const Session& session = *entry->session;
  const Reception how{.is_astray = arrival.is_astray, .waited = arrival.waited};
  put(entry->session->on_packet(arrival.packet, now, how));
  if (!entry->is_client) {
    entry->learn(session.heard_path(), arrival.route, session.heard_update());
  }
  mark(*entry);
}

void Stack::put(const Placement& placement) {  // hot
  const auto payload = placement.payload;
  if (placement.action == Placement::Action::kCopy && !payload.empty()) {
    prefetch_next<PrefetchTo::kWrite>({placement.to, payload.size()});
    std::memcpy(placement.to, payload.data(), payload.size());
    stats_.bytes_copied += payload.size();
  } else if (placement.action == Placement::Action::kTake) {
    placement.taker.show(placement.msg_off, payload);
    stats_.bytes_taken += payload.size();
  }
}

/// The session that a SYN is for; a new one is made, and given the SYN again, which it ignores.
Stack::Entry* Stack::on_syn(const Arrival& arrival, Time now) {
  const auto view = parse_packet(arrival.packet);
  const auto syn =
      view && view->header.type == PacketType::kSyn ? parse_syn(view->body) : std::nullopt;
  Listening* const found = syn ? listening(syn->listen_id) : nullptr;
  if (found == nullptr) {
    return nullptr;
  }
  const Listener::Answer answer = found->listener.on_packet(arrival.packet);
  if (answer.verdict == Listener::Verdict::kKnown) {
    return entries_[answer.cid & kSlotMask].get();
  }
  Entry* const entry = answer.verdict == Listener::Verdict::kNew ? add_entry() : nullptr;
  if (entry == nullptr) {
    return nullptr;
  }
  const SessionConfig config = session_config(entry->slot);
  entry->session =
      std::make_unique<Session>(config, found->secret, answer.syn, answer.tx_time, now);
  entry->listen_id = found->id;
  entry->learn(view->header.path, arrival.route, /*is_update=*/true);
  found->listener.add(answer.syn.nonce, config.local_cid);
  return entry;
}

bool Stack::wake_due(Time now) {
  if (now < next_due_) {
    return false;
  }
  for (std::size_t slot = 0; slot < deadlines_.size(); ++slot) {
    if (deadlines_[slot] <= now) {
      mark(*entries_[slot]);
    }
  }
  return true;
}

/// A short message of a session with nothing else to do leaves before anybody looks what has
/// arrived: its peer waits for it, and what has arrived is mostly what it answers, acknowledged.
void Stack::transmit_few(Time now) {  // hot
  bool has_sent = false;
  for (Entry* const entry : marked_) {
    const std::size_t packets = entry->session->waiting_packets();
    const std::size_t in_flight = entry->session->sent_packets().in_flight();
    if (!is_blocked_ && packets > 0 && packets + in_flight <= kFewPackets) {
      transmit_from(*entry, now);
      has_sent = true;
    }
  }
  if (has_sent) {
    is_blocked_ = !datapath_->flush(now);
  }
}

void Stack::transmit(Time now) {  // hot
  std::ranges::partition(marked_, [](const Entry* entry) {
    const std::size_t packets = entry->session->waiting_packets();
    return packets > 0 && packets <= kFewPackets;
  });
  for (Entry* const entry : marked_) {
    if (std::exchange(entry->has_received, false)) {
      // Its application first: an answer may leave with the acknowledgement.
      entry->goes_on = true;
    } else {
      transmit_from(*entry, now);
    }
  }
  is_blocked_ = !datapath_->flush(now);
}

void Stack::transmit_from(Entry& entry, Time now) {  // hot
  for (int sent = 0; sent < kMaxPacketsPerTurn; ++sent) {
    if (!make_room(now) || !entry.session->poll_transmit(now, packet_)) {
      return;  // Where there is no room, the session's deadline brings it back.
    }
    datapath_->send(entry.route(packet_),
                    std::span<const std::byte>(packet_.head).first(packet_.head_bytes),
                    packet_.payload);
  }
  entry.goes_on = true;
}

bool Stack::make_room(Time now) {
  return datapath_->room() > 0 || (datapath_->flush(now) && datapath_->room() > 0);
}

void Stack::tell_applications() {
  for (Entry* const entry : marked_) {
    Event event;
    while (entry->session->poll_event(event)) {
      if (is_blocked_) {
        datapath_->discard();  // What waits may refer to a buffer that is given back now.
        is_blocked_ = false;
      }
      tell(*entry, event);
    }
  }
}

void Stack::tell(Entry& entry, const Event& event) {
  entry.sends -= event.kind == Event::Kind::kSendDone ? 1 : 0;
  stats_.sessions_failed += event.kind == Event::Kind::kFailed ? 1 : 0;
  if (entry.channel == nullptr) {
    return;
  }
  switch (event.kind) {
    case Event::Kind::kConnected:
      entry.channel->open();
      if (const Listening* const home = listening(entry.listen_id); home != nullptr) {
        home->backlog->add(entry.channel);
      }
      break;
    case Event::Kind::kReceiveDone:
      entry.has_received = true;
      [[fallthrough]];
    case Event::Kind::kSendDone:
      entry.channel->complete(static_cast<RequestId>(event.cookie),
                              {.error = event.error, .tag = event.tag, .bytes = event.bytes});
      break;
    case Event::Kind::kPeerClosed:
      break;  // Its requests were completed.
    case Event::Kind::kClosed:
    case Event::Kind::kFailed:
      entry.channel->end(event.error);
      break;
  }
}

/// Looks when each marked session wants to be called again, and forgets those that are finished.
void Stack::settle(Time now) {
  settling_.swap(marked_);
  for (Entry* const entry : settling_) {
    entry->is_marked = false;
    if (entry->session->is_finished()) {
      remove(*entry);
      continue;
    }
    const bool posted = entry->has_posts_left && post(*entry, now);
    if (entry->goes_on || posted) {
      mark(*entry);
    }
    entry->goes_on = false;
    if (entry->session->has_events()) {  // A timer made them, after applications were told.
      mark(*entry);
    }
    deadlines_[entry->slot] = entry->session->next_deadline();
  }
  settling_.clear();
  next_due_ = deadlines_.empty() ? kNever : std::ranges::min(deadlines_);
}

// --- Sessions -----------------------------------------------------------------------------------

std::shared_ptr<Channel> Stack::connect(const ConnectHandle& handle, Time now) {
  Entry* const entry = add_entry();
  if (entry == nullptr) {
    return nullptr;
  }
  entry->session =
      std::make_unique<Session>(session_config(entry->slot), handle.secret, handle.listen_id, now);
  const Address peer{.ip = handle.address, .family = handle.family, .port = handle.port};
  entry->is_client = true;
  entry->routes.fill({.peer = peer, .local_port = 0});
  entry->known_routes = ~std::uint64_t{0};
  mark(*entry);
  return entry->channel;
}

ConnectHandle Stack::listen(std::shared_ptr<Backlog> backlog) {
  const Address& here = datapath_->address();
  const ConnectHandle handle{.family = here.family,
                             .port = here.port,
                             .address = here.ip,
                             .listen_id = random_value<std::uint64_t>(config_.entropy) | 1,
                             .secret = random_value<Secret>(config_.entropy),
                             .paths = config_.paths,
                             .mtu_bytes = static_cast<std::uint16_t>(
                                 std::min<std::size_t>(datapath_->mtu_bytes(), 0xffff)),
                             .features = 0};
  listeners_.push_back({.id = handle.listen_id,
                        .listener = Listener(handle.listen_id, handle.secret, kMaxSessions),
                        .secret = handle.secret,
                        .backlog = std::move(backlog)});
  return handle;
}

void Stack::stop_listening(std::uint64_t listen_id, Time now) {
  const Listening* const found = listening(listen_id);
  if (found == nullptr) {
    return;
  }
  while (const auto channel = found->backlog->take()) {
    close(*channel, now);
  }
  for (const auto& entry : entries_) {
    if (entry == nullptr || entry->listen_id != listen_id) {
      continue;
    }
    entry->listen_id = 0;
    if (entry->channel != nullptr && entry->channel->life() == Channel::Life::kConnecting) {
      end(*entry, now);
    }
  }
  std::erase_if(listeners_, [&](const Listening& one) { return one.id == listen_id; });
}

void Stack::close(const Channel& channel, Time now) {
  const std::size_t slot = channel.bell();
  if (slot < entries_.size() && entries_[slot] != nullptr &&
      entries_[slot]->channel.get() == &channel) {
    end(*entries_[slot], now);
  }
}

/// The application has gone, and its buffers with it.
void Stack::end(Entry& entry, Time now) {
  const bool has_posts = entry.channel->next_post() != nullptr;
  if (entry.sends > 0 || has_posts || !entry.session->is_connected()) {
    entry.session->cancel(now);
  } else {
    entry.session->close(now);
  }
  if (!datapath_->flush(now)) {
    datapath_->discard();
  }
  entry.channel->end(SessionError::kCancelled);
  entry.channel.reset();
  --channel_count_;
  mark(entry);
}

void Stack::mark(Entry& entry) {
  if (!entry.is_marked) {
    entry.is_marked = true;
    marked_.push_back(&entry);
  }
}

/// Null: all slots are taken.
Stack::Entry* Stack::add_entry() {
  if (free_slots_.empty()) {
    if (entries_.size() == kMaxSessions) {
      return nullptr;
    }
    free_slots_.push_back(static_cast<Slot>(entries_.size()));
    entries_.emplace_back();
    deadlines_.push_back(kNever);
  }
  const Slot slot = free_slots_.back();
  free_slots_.pop_back();
  auto entry = std::make_unique<Entry>();
  entry->slot = slot;
  entry->channel = std::make_shared<Channel>(bells_, slot);
  entries_[slot] = std::move(entry);
  ++channel_count_;
  ++stats_.sessions_begun;
  return entries_[slot].get();
}

void Stack::remove(Entry& entry) {
  const Slot slot = entry.slot;
  add_counters(kSessionCounters, entry.session->stats(), past_);
  if (Listening* const home = listening(entry.listen_id); home != nullptr) {
    home->listener.remove(entry.session->local_cid());
  }
  if (entry.channel != nullptr && entry.channel->life() != Channel::Life::kEnded) {
    entry.channel->end(entry.session->error());
  }
  channel_count_ -= entry.channel != nullptr ? 1 : 0;
  deadlines_[slot] = kNever;
  free_slots_.push_back(slot);
  entries_[slot].reset();
}

Stack::Listening* Stack::listening(std::uint64_t id) {
  const auto found = std::ranges::find(listeners_, id, &Listening::id);
  return id != 0 && found != listeners_.end() ? &*found : nullptr;
}

SessionConfig Stack::session_config(Slot slot) {
  SessionConfig config = config_.session;
  const std::size_t extra = datapath_->address().family == 6 ? kIpv6ExtraBytes : 0;
  config.max_pss = pss_for_mtu(datapath_->mtu_bytes() - extra);
  config.paths = config_.paths;
  config.flows = datapath_->local_ports();
  config.buffer_bytes = static_cast<std::uint32_t>(
      std::min<std::size_t>(datapath_->buffer_bytes(), std::numeric_limits<std::uint32_t>::max()));
  config.payload_crc = config.payload_crc || !datapath_->has_checksum();
  config.window_packets = window_packets(config.max_pss);
  config.eager_packets =
      static_cast<std::uint32_t>(std::max(kMinEagerPackets, kEagerBytes / config.max_pss));
  do {
    config.local_cid = (random_value<Cid>(config_.entropy) << kSlotBits) | slot;
  } while (config.local_cid == 0);
  config.nonce = random_value<Nonce>(config_.entropy);
  config.seed = random_value<std::uint64_t>(config_.entropy);
  return config;
}

std::size_t Stack::list_sessions(std::span<SessionView> out) const {
  std::size_t listed = 0;
  for (const auto& entry : entries_) {
    if (listed == out.size()) {
      break;
    }
    if (entry != nullptr) {
      out[listed++] = {.session = entry->session.get(), .peer = entry->route(0).peer};
    }
  }
  return listed;
}

std::string Stack::describe_session(const Channel& channel) const {
  const std::size_t slot = channel.bell();
  if (slot >= entries_.size() || entries_[slot] == nullptr ||
      entries_[slot]->channel.get() != &channel || !entries_[slot]->session->is_connected()) {
    return {};
  }
  const Session& session = *entries_[slot]->session;
  const auto in_us = [](Duration time) { return std::to_string(time.count() / 1000) + " us"; };
  return "session " + std::to_string(session.local_cid()) + ": pss " +
         std::to_string(session.pss()) + ", window " +
         std::to_string(static_cast<int>(session.congestion().window_packets())) +
         " packets, rtt " + in_us(session.paths().best_rtt()) + ", least " +
         in_us(session.paths().min_rtt());
}

SessionStats Stack::session_stats() const {
  SessionStats sum = past_;
  for (const auto& entry : entries_) {
    if (entry != nullptr) {
      add_counters(kSessionCounters, entry->session->stats(), sum);
    }
  }
  return sum;
}

}  // namespace harp
