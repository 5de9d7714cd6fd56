#include "control_world.hpp"

#include <algorithm>
#include <utility>

namespace lightcc::sim {
namespace {

constexpr std::string_view kDied = " ended unexpectedly";

// What a rank contributes to an all-reduce when it asks for it the `times`-th time: all its bytes.
std::byte input_byte(int rank, const std::string& key, std::uint64_t times) {
  const std::size_t hash = std::hash<std::string>()(key) + times * 31 + 7;
  return static_cast<std::byte>(hash * static_cast<std::size_t>(2 * rank + 3) >> 5);
}

// Inputs are combined by exclusive or.
bool combine(const Signature& /*signature*/,
             const std::vector<std::int32_t>& /*members*/,
             std::span<const std::byte> inputs,
             std::span<std::byte> result) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    result[i % result.size()] ^= inputs[i];
  }
  return true;
}

Status gone(int rank, const std::string& how) {
  return Status(ErrorCode::kPeerFailed, "rank " + std::to_string(rank) + how, rank);
}

}  // namespace

ControlWorld::ControlWorld(WorldPlan plan, std::uint64_t seed)
    : plan_(std::move(plan)), rng_(seed) {
  std::size_t size = 0;
  for (const auto& host : plan_.hosts) {
    size += host.size();
  }
  ranks_.resize(size);
  plan_.sequencer.world_size = static_cast<int>(size);
  plan_.sequencer.combine_inline = combine;
  const auto link = [&](int parent, int child, bool is_remote) {
    Rank& above = ranks_[index(parent)];
    Rank& below = ranks_[index(child)];
    const Duration extra = is_remote ? jitter(plan_.slowest_control) : Duration::zero();
    below.parent = parent;
    below.to_parent = {
        parent, static_cast<LinkIndex>(above.children.size()), is_remote, false, extra, {}};
    above.children.push_back({child, kParentLink, is_remote, false, extra, {}});
  };
  for (std::size_t h = 0; h < plan_.hosts.size(); ++h) {
    const auto& host = plan_.hosts[h];
    for (const int rank : host) {
      ranks_[index(rank)].host = static_cast<int>(h);
      if (rank != host.front()) {
        link(host.front(), rank, false);
        ranks_[index(rank)].watched = {host.front()};
        ranks_[index(host.front())].watched.push_back(rank);
      }
    }
    if (h > 0) {
      link(plan_.hosts[(h - 1) / kTreeArity].front(), host.front(), true);
    }
  }
  const ProcessSetTable everybody(static_cast<int>(size));
  const std::vector<int> parents = tree_parents(plan_.hosts);
  for (std::size_t r = 0; r < size; ++r) {
    Rank& rank = ranks_[r];
    ControlOptions options;
    options.rank = static_cast<int>(r);
    if (rank.parent >= 0) {
      options.parent = ControlPeer{rank.parent, rank.to_parent.is_remote};
    }
    for (const Link& child : rank.children) {
      options.children.push_back({child.rank, child.is_remote});
    }
    options.tree_parents = parents;
    options.watched = rank.watched;
    rank.seen_beats.resize(rank.watched.size(), 0);
    options.is_networked = plan_.hosts.size() > 1;
    options.peer_timeout = plan_.peer_timeout;
    options.sequencer = plan_.sequencer;
    options.max_inline_bytes = plan_.max_inline_bytes;
    options.process_sets = everybody;
    rank.control = std::make_unique<ControlPlane>(std::move(options), now_);
    schedule_tick(static_cast<int>(r));
  }
}

bool ControlWorld::is_leader(int rank) const {
  return plan_.hosts[index(host_of(rank))].front() == rank;
}

void ControlWorld::schedule(TimePoint when, std::function<void()> what, bool is_heartbeat) {
  queue_.push({std::max(when, now_), next_number_++, std::move(what), is_heartbeat});
  work_events_ += is_heartbeat ? 0 : 1;
}

void ControlWorld::at(TimePoint when, std::function<void()> what) {
  schedule(when, std::move(what));
}

void ControlWorld::run(TimePoint deadline) {
  const auto is_waited_for = [&] {
    return std::ranges::any_of(ranks_, [](const Rank& rank) {
      return rank.alive && rank.end == nullptr &&
             (rank.outstanding > 0 || rank.control->is_suspecting() || rank.control->is_closing());
    });
  };
  while (!queue_.empty() && violation_.empty() && queue_.top().when <= deadline) {
    if (work_events_ == 0 && !is_waited_for()) {
      return;
    }
    Event event = std::move(const_cast<Event&>(queue_.top()));  // NOLINT: popped at once.
    queue_.pop();
    work_events_ -= event.is_heartbeat ? 0 : 1;
    now_ = event.when;
    ++events_;
    event.what();
  }
}

// A stopped process does nothing until it goes on; a dead one never.
bool ControlWorld::can_act(int rank, const std::function<void()>& otherwise) {
  const Rank& r = ranks_[index(rank)];
  if (!r.alive || r.end != nullptr) {
    return false;
  }
  if (r.stopped_until > now_) {
    schedule(r.stopped_until, otherwise, r.stopped_until == TimePoint::max());
    return false;
  }
  return true;
}

void ControlWorld::act_at(TimePoint when, int rank, std::function<void()> what) {
  schedule(when, [this, rank, what = std::move(what)] {
    if (can_act(rank, [this, rank, what] { act_at(now_, rank, what); })) {
      what();
    }
  });
}

void ControlWorld::submit(int rank,
                          const Request& request,
                          OperationToken operation,
                          bool is_alone) {
  Rank& r = ranks_[index(rank)];
  if (r.alive && r.end == nullptr) {
    ++r.outstanding;
    const Signature& s = request.signature;
    const std::string key = key_of(s.process_set, s.name);
    Bytes input;
    if (s.op == OpType::kAllreduce) {
      const std::uint64_t times = ++r.asked[key];
      input.assign(is_alone ? byte_count(s) : 0, input_byte(rank, key, times));
    }
    if (!input.empty() && plan_.spoils_inputs && rank == 0) {
      input.back() ^= std::byte{1};
    }
    r.control->submit(request, key, operation, input);
    wake(rank);
  }
}

void ControlWorld::leave(int rank) {
  if (ranks_[index(rank)].alive && ranks_[index(rank)].end == nullptr) {
    ranks_[index(rank)].control->leave();
    wake(rank);
  }
}

// The progress loop comes round a little later; what arrives meanwhile is taken in together.
void ControlWorld::wake(int rank) {
  if (!std::exchange(ranks_[index(rank)].is_awake, true)) {
    schedule(now_ + jitter(std::chrono::microseconds(3)), [this, rank] { pump(rank); });
  }
}

void ControlWorld::pump(int rank) {
  Rank& r = ranks_[index(rank)];
  if (!can_act(rank, [this, rank] { pump(rank); })) {
    return;
  }
  r.is_awake = false;
  if (r.control->is_suspecting()) {
    tick_if_due(rank);
  }
  r.control->advance(now_);
  drain(rank);
  if (r.control->is_closing() && r.running.empty() && r.end == nullptr) {
    r.control->on_quiet();
    drain(rank);
  }
  if (r.end == nullptr && (r.control->is_suspecting() || r.control->has_held())) {
    schedule(r.control->deadline(), [this, rank] { wake(rank); });
  }
}

void ControlWorld::drain(int rank) {
  Rank& r = ranks_[index(rank)];
  while (r.control->has_output()) {
    for (const OutgoingFrame& frame : r.control->take_frames()) {
      send(rank, frame);
    }
    for (ControlAction& action : r.control->take_actions()) {
      if (auto* bucket = std::get_if<RunBucket>(&action)) {
        run_bucket(rank, *bucket);
      } else if (const auto* taken = std::get_if<TakeResult>(&action)) {
        take_result(rank, *taken);
      } else if (const auto* done = std::get_if<CompleteOperation>(&action)) {
        complete(rank, done->operation, done->status, done->value);
      } else if (const auto* made = std::get_if<MakeProcessSet>(&action)) {
        complete(rank, made->waiting, {}, static_cast<std::int32_t>(made->id));
      } else if (const auto* ended = std::get_if<EndWorld>(&action)) {
        r.end = std::make_unique<EndWorld>(*ended);
        if (on_end) {
          on_end(*ended);
        }
        if (!ended->is_in_order) {
          close_data(rank);
        }
        for (Link& child : r.children) {
          if (child.is_remote) {
            close_link(rank, child, Duration::zero());
          }
        }
        if (r.parent >= 0 && r.to_parent.is_remote) {
          close_link(rank, r.to_parent, Duration::zero());
        }
      }
    }
  }
}

// --- Links --------------------------------------------------------------------------------------

void ControlWorld::send(int rank, const OutgoingFrame& outgoing) {
  Rank& r = ranks_[index(rank)];
  const bool hides = plan_.hides_waiting && std::holds_alternative<Heartbeat>(outgoing.frame);
  const auto frame = std::make_shared<const Frame>(hides ? Frame(Heartbeat{}) : outgoing.frame);
  std::size_t bytes = 0;
  if (plan_.counts_bytes) {
    Bytes encoded;
    encode_frame(*frame, encoded);
    bytes = encoded.size();
  }
  if (r.parent >= 0 && outgoing.goes_to(kParentLink)) {
    transmit(rank, r.to_parent, frame, bytes);
  }
  for (std::size_t i = 0; i < r.children.size(); ++i) {
    if (outgoing.goes_to(static_cast<LinkIndex>(i))) {
      transmit(rank, r.children[i], frame, bytes);
    }
  }
}

void ControlWorld::transmit(int from,
                            Link& link,
                            const std::shared_ptr<const Frame>& frame,
                            std::size_t bytes) {
  Traffic& traffic = ranks_[index(from)].traffic;
  const bool is_heartbeat = std::holds_alternative<Heartbeat>(*frame);
  if (!is_heartbeat) {
    ++traffic.frames_out;
    traffic.bytes_out += bytes;
    if (frames_++ == plan_.lost_frame) {
      return;
    }
  }
  if (link.is_cut) {
    return;
  }
  const Duration delay = link.is_remote ? plan_.network_delay + link.extra : plan_.local_delay;
  TimePoint arrival = now_ + delay + jitter(delay);
  if (!plan_.swaps_frames) {
    arrival = std::max(arrival, link.last_arrival + Duration(1));
  }
  link.last_arrival = arrival;
  const int to = link.rank;
  const LinkIndex back = link.back;
  schedule(
      arrival, [this, to, back, frame, bytes] { deliver(to, back, frame, bytes); }, is_heartbeat);
}

void ControlWorld::deliver(int to,
                           LinkIndex link,
                           std::shared_ptr<const Frame> frame,
                           std::size_t bytes) {
  if (!can_act(to, [=, this] { deliver(to, link, frame, bytes); })) {
    return;
  }
  Rank& r = ranks_[index(to)];
  if (!std::holds_alternative<Heartbeat>(*frame)) {
    ++r.traffic.frames_in;
    r.traffic.bytes_in += bytes;
  }
  r.control->on_frame(link, *frame, now_);
  if (!std::holds_alternative<Heartbeat>(*frame)) {
    wake(to);
  }
}

// The other end reads what was sent, then the end.
void ControlWorld::close_link(int from, Link& link, Duration after) {
  if (link.is_cut) {
    return;
  }
  const TimePoint arrival =
      std::max(now_ + after + plan_.network_delay, link.last_arrival + Duration(1));
  link.last_arrival = arrival;
  const int to = link.rank;
  const LinkIndex back = link.back;
  const auto close = [this, to, back, from] {
    ranks_[index(to)].control->on_link_closed(
        back, gone(from, " closed its control connection"), now_);
    wake(to);
  };
  act_at(arrival, to, close);
}

// Some ranks find that a connection for data has closed, in most cases before the news.
void ControlWorld::close_data(int rank) {
  if (plan_.hosts.size() < 2) {
    return;
  }
  const std::size_t count = 1 + rng_.below(4);
  for (std::size_t i = 0; i < count; ++i) {
    const int to = static_cast<int>(rng_.below(ranks_.size()));
    if (host_of(to) == host_of(rank)) {
      continue;
    }
    const auto close = [this, to, rank] {
      ranks_[index(to)].control->on_trouble(gone(rank, " closed its connection"), now_);
      wake(to);
    };
    act_at(now_ + plan_.network_delay + jitter(plan_.network_delay), to, close);
  }
}

// --- Time ---------------------------------------------------------------------------------------

void ControlWorld::schedule_tick(int rank) {
  schedule(ranks_[index(rank)].control->next_tick(), [this, rank] { tick(rank); }, true);
}

void ControlWorld::tick(int rank) {
  if (!can_act(rank, [this, rank] { tick(rank); })) {
    return;
  }
  tick_if_due(rank);
  if (ranks_[index(rank)].end == nullptr) {
    schedule_tick(rank);
  }
}

void ControlWorld::tick_if_due(int rank) {
  Rank& r = ranks_[index(rank)];
  if (now_ < r.control->next_tick()) {
    return;
  }
  r.beats += 1;
  r.beat_busy = r.outstanding > 0;
  bool host_busy = false;
  for (std::size_t i = 0; i < r.watched.size(); ++i) {
    const Rank& other = ranks_[index(r.watched[i])];
    if (std::exchange(r.seen_beats[i], other.beats) != other.beats) {
      r.control->heard_from(r.watched[i], now_);
    }
    host_busy = host_busy || other.beat_busy;
  }
  r.control->tick(now_, r.beat_busy, host_busy);
  drain(rank);
  if (r.end == nullptr && r.control->wants_advance()) {
    wake(rank);
  }
}

// --- Execution
// ------------------------------------------------------------------------------------

void ControlWorld::run_bucket(int rank, RunBucket& bucket) {
  Rank& r = ranks_[index(rank)];
  const std::pair key(bucket.process_set, bucket.lane);
  const std::uint64_t number = r.bucket_count[key]++;
  std::uint64_t content = 0;
  std::vector<OperationToken> operations;
  for (const MatchedTensor& tensor : bucket.tensors) {
    content = content * 1099511628211U + std::hash<std::string>()(tensor.agreed->signature.name);
    operations.push_back(tensor.operation);
  }
  Bucket& shared = buckets_[{key, number}];
  if (!shared.operations.empty() && shared.content != content) {
    violate("rank " + std::to_string(rank) + " runs other tensors than others as bucket " +
            std::to_string(number) + " of set " + std::to_string(bucket.process_set));
    return;
  }
  shared.content = content;
  shared.operations.emplace_back(rank, std::move(operations));
  r.running.emplace_back(key, number);
  if (r.running.size() == 1) {
    arrive(rank);
  }
}

// A rank runs its buckets one after another: with more at once no circle could be missed.
void ControlWorld::arrive(int rank) {
  const Rank& r = ranks_[index(rank)];
  const BucketKey key = r.running.front();
  const auto [process_set, lane] = key.first;
  if (++buckets_[key].arrived < r.control->process_sets().find(process_set)->size()) {
    return;
  }
  const auto finished = buckets_.extract(key);
  for (auto& [member, tokens] : finished.mapped().operations) {
    const int to = member;
    const auto done = [this, to, ended = std::move(tokens), process_set, lane] {
      ranks_[index(to)].control->on_bucket_done(process_set, lane, now_);
      for (const OperationToken token : ended) {
        complete(to, token, {}, 0);
      }
      std::deque<BucketKey>& running = ranks_[index(to)].running;
      running.pop_front();
      if (!running.empty()) {
        arrive(to);
      }
      wake(to);
    };
    act_at(now_ + plan_.shortest_bucket + jitter(std::chrono::microseconds(50)), to, done);
  }
}

// Every member had asked for it as often as this one.
void ControlWorld::take_result(int rank, const TakeResult& taken) {
  const std::string& name = taken.tensor.agreed->signature.name;
  const std::string key = key_of(taken.process_set, name);
  const Rank& r = ranks_[index(rank)];
  const std::uint64_t times = r.asked.at(key);
  std::byte expected{};
  for (const std::int32_t member : *r.control->process_sets().find(taken.process_set)) {
    expected ^= input_byte(member, key, times);
  }
  ++inline_results_;
  if (taken.result.empty() || std::ranges::count(taken.result, expected) !=
                                  static_cast<std::ptrdiff_t>(taken.result.size())) {
    violate("rank " + std::to_string(rank) + " got a wrong result of '" + name + "'");
  }
  complete(rank, taken.tensor.operation, {}, 0);
}

void ControlWorld::complete(int rank,
                            OperationToken operation,
                            const Status& status,
                            std::int32_t value) {
  if (operation != kNoOperation) {
    --ranks_[index(rank)].outstanding;
    on_complete(rank, operation, status, value);
  }
}

// --- Faults -------------------------------------------------------------------------------------

void ControlWorld::vanish(int rank) {
  ranks_[index(rank)].alive = false;
}

void ControlWorld::kill(int rank) {
  vanish(rank);
  Rank& r = ranks_[index(rank)];
  const int named = plan_.blames_wrongly ? (rank + 1) % size() : rank;
  for (const int watcher : plan_.hosts[index(r.host)]) {
    if (watcher == rank || (!is_leader(rank) && !is_leader(watcher))) {
      continue;
    }
    const auto seen = [this, watcher, named] {
      ranks_[index(watcher)].control->on_death(gone(named, std::string(kDied)));
      drain(watcher);
    };
    // What it said before counts first, so the news comes after its last frames.
    const TimePoint last = watcher == r.parent
                               ? r.to_parent.last_arrival
                               : std::ranges::find(r.children, watcher, &Link::rank)->last_arrival;
    act_at(
        std::max(now_ + jitter(std::chrono::milliseconds(1)), last + Duration(1)), watcher, seen);
  }
  for (Link& child : r.children) {
    if (child.is_remote) {
      close_link(rank, child, jitter(std::chrono::milliseconds(1)));
    }
  }
  if (r.parent >= 0 && r.to_parent.is_remote) {
    close_link(rank, r.to_parent, jitter(std::chrono::milliseconds(1)));
  }
  close_data(rank);
}

void ControlWorld::stop(int rank, TimePoint until) {
  ranks_[index(rank)].stopped_until = until;
}

void ControlWorld::cut(int rank) {
  Rank& r = ranks_[index(rank)];
  r.to_parent.is_cut = true;
  ranks_[index(r.parent)].children[static_cast<std::size_t>(r.to_parent.back)].is_cut = true;
}

void ControlWorld::restart_host(std::size_t host) {
  for (const int rank : plan_.hosts[host]) {
    vanish(rank);
  }
  // The host is back after a while, knows no connection, and resets them.
  const int leader = plan_.hosts[host].front();
  for (Link& child : ranks_[index(leader)].children) {
    if (child.is_remote) {
      close_link(leader, child, plan_.peer_timeout / 2 + jitter(plan_.peer_timeout * 2));
    }
  }
}

void ControlWorld::reset_traffic() {
  for (Rank& rank : ranks_) {
    rank.traffic = {};
  }
}

void ControlWorld::violate(const std::string& what) {
  if (violation_.empty()) {
    violation_ = what;
  }
}

}  // namespace lightcc::sim
