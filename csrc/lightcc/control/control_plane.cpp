// Links, time and ends. What reports and commands mean is in control_plane_negotiation.cpp.
#include "lightcc/control/control_plane.hpp"

#include <algorithm>
#include <utility>

namespace lightcc {
namespace {

constexpr int kNobody = -1;

// How long the news of a failure may take along the tree of control links, longer than a connection
// that a survivor closes in consequence.
constexpr Duration kUpdateDelay = std::chrono::milliseconds(300);

}  // namespace

ControlPlane::ControlPlane(ControlOptions options, TimePoint now)
    : options_(std::move(options)),
      silence_(options_.peer_timeout, now),
      process_sets_(std::move(options_.process_sets)),
      tree_(std::move(options_.tree_parents)),
      gathering_(static_cast<std::uint32_t>(options_.rank)),
      next_tick_(now) {
  for (const int rank : options_.watched) {
    silence_.watch(rank, now);
  }
  if (options_.parent.has_value() && options_.parent->is_remote) {
    silence_.watch(options_.parent->rank, now);
  }
  for (const ControlPeer& child : options_.children) {
    if (child.is_remote) {
      silence_.watch(child.rank, now);
    }
  }
  if (!is_root() && options_.parent->is_remote) {
    host_ranks_.push_back(options_.rank);
    for (const ControlPeer& child : options_.children) {
      if (!child.is_remote) {
        host_ranks_.push_back(child.rank);
      }
    }
    std::ranges::sort(host_ranks_);
    options_.sequencer.rank = options_.rank;
    options_.sequencer.first_slot = kFirstHostSlot;
    options_.sequencer.slow_time = Duration::zero();  // Who is slow, rank 0 finds.
  }
  if (is_root() || !host_ranks_.empty()) {
    sequencer_ = std::make_unique<Sequencer>(options_.sequencer, process_sets_);
  }
}

const ControlPeer& ControlPlane::peer(LinkIndex link) const {
  return link == kParentLink ? *options_.parent : options_.children[static_cast<std::size_t>(link)];
}

// --- In -----------------------------------------------------------------------------------------

void ControlPlane::on_frame(LinkIndex link, Frame frame, TimePoint now) {
  if (is_over_) {
    return;
  }
  const ControlPeer& sender = peer(link);
  if (sender.is_remote) {
    silence_.heard_from(sender.rank, now);
  }
  if (const auto* error = std::get_if<WorldError>(&frame)) {
    end_in_error(Status(error->code, error->message, error->rank), link);
    return;
  }
  if (const auto* heartbeat = std::get_if<Heartbeat>(&frame)) {
    silence_.note_waiting(sender.rank, heartbeat->waits);
    return;
  }
  if (is_suspecting()) {
    end_if_shut_down(frame);
    return;
  }
  if (auto* reports = std::get_if<std::vector<Report>>(&frame);
      reports != nullptr && link != kParentLink) {
    for (Report& report : *reports) {
      reports_.push_back(std::move(report));
    }
    wants_advance_ = true;
    return;
  }
  if (auto* commands = std::get_if<std::vector<Command>>(&frame);
      commands != nullptr && link == kParentLink) {
    wake_at_ = TimePoint::max();
    if (const Status applied = apply_all(*commands, false, now); !applied.ok()) {
      on_trouble(applied, now);
    }
    return;
  }
  on_trouble(Status(ErrorCode::kPeerFailed,
                    "rank " + std::to_string(sender.rank) + " sent a frame of the wrong direction",
                    sender.rank),
             now);
}

void ControlPlane::on_link_closed(LinkIndex /*link*/, const Status& error, TimePoint now) {
  // Once the world is closing, ranks that are done go away; that is no failure.
  if (is_over_ || is_closing_) {
    return;
  }
  if (options_.is_networked && !is_suspecting()) {
    // A neighbour passes on what it knows before it closes. So nothing is to be waited for but what
    // has arrived on other links by now.
    suspect(error, now, Duration::zero());
  } else {
    end_in_error(error, kNoLink);
  }
}

void ControlPlane::on_death(const Status& death) {
  if (!is_over_ && !is_closing_) {
    end_in_error(death, kNoLink);
  }
}

// A connection that closes may be the consequence of a failure elsewhere, which its other end heard
// of earlier: then the error must name the rank that failed first, and not the messenger.
void ControlPlane::on_trouble(const Status& error, TimePoint now) {
  if (is_over_ || is_suspecting()) {
    return;
  }
  const bool is_secondhand = options_.is_networked && error.code() == ErrorCode::kPeerFailed;
  if (is_secondhand && is_closing_) {
    on_quiet();  // Ranks that are done go away. What still needed them fails as the rest does.
  } else if (is_secondhand) {
    // A stopped leader cannot pass news on; then this rank finds it silent itself, a heartbeat
    // later.
    suspect(error, now, kUpdateDelay + 2 * silence_.interval());
  } else {
    end_in_error(own_words(error), kNoLink);
  }
}

void ControlPlane::on_bucket_done(std::uint32_t process_set, std::uint32_t lane, TimePoint now) {
  if (sequencer_ != nullptr) {
    sequencer_->on_bucket_done(process_set, lane, now);
    wants_advance_ = true;
  }
}

// --- Time ---------------------------------------------------------------------------------------

void ControlPlane::advance(TimePoint now) {
  wants_advance_ = false;
  if (is_over_) {
    return;
  }
  if (is_suspecting()) {
    if (now >= update_deadline_) {
      // Neighbours give signs of life more often than that. One that has given none since the
      // connection closed is the likelier cause.
      const Status silent = is_patient_ ? silence_.check_since(suspected_at_, now) : Status();
      end_in_error(silent.ok() ? Status(*suspicion_) : silent, kNoLink);
    }
    return;
  }
  send_reports(now);
  wake_late_parent(now);
  announce(now);
}

TimePoint ControlPlane::deadline() const {
  if (is_suspecting()) {
    return std::min(next_tick_, update_deadline_);
  }
  if (!has_held()) {
    return next_tick_;
  }
  const TimePoint flush = gathering_.has_held() ? gathering_.next_flush() : TimePoint::max();
  const TimePoint release = sequencer_ != nullptr ? sequencer_->next_release() : TimePoint::max();
  return std::min({next_tick_, wake_at_, flush, release});
}

void ControlPlane::tick(TimePoint now, bool is_busy, bool is_host_busy) {
  if (is_over_) {
    return;
  }
  if (is_suspecting()) {
    next_tick_ = now + silence_.interval() / 4;
    beat(true);
    if (const Status silent = silence_.tick(now, true); !silent.ok()) {
      end_in_error(silent, kNoLink);
    }
    return;
  }
  next_tick_ = now + silence_.interval();
  const bool is_pending = sequencer_ != nullptr && sequencer_->has_pending();
  const bool waits = is_busy || is_host_busy || is_pending;
  beat(waits);
  // In a world that closes, ranks that are done go away; the rest has a deadline.
  Status error = is_closing_ ? Status() : silence_.tick(now, waits);
  if (error.ok() && sequencer_ != nullptr) {
    auto stalls = sequencer_->check_stalls(now);
    std::ranges::move(stalls.warnings, std::back_inserter(warnings_));
    error = stalls.fatal;
  }
  if (error.ok() && is_closing_ && now > closing_deadline_) {
    error = make_error(ErrorCode::kTimeout, "operations under way at shutdown did not finish");
  }
  if (!error.ok()) {
    on_trouble(error, now);
  }
}

// A sign of life to all neighbours. It tells each whether anyone else waits.
void ControlPlane::beat(bool is_host_busy) {
  const bool anyone = is_host_busy || silence_.waits_beside(kNobody);
  LinkIndex alone = kNoLink;  // The one link that does not hear of somebody else.
  const auto look_at = [&](LinkIndex link) {
    if (anyone && !is_host_busy && !silence_.waits_beside(peer(link).rank)) {
      alone = link;
    }
  };
  if (options_.parent.has_value()) {
    look_at(kParentLink);
  }
  for (std::size_t i = 0; i < options_.children.size(); ++i) {
    look_at(static_cast<LinkIndex>(i));
  }
  frames_.push_back({Heartbeat{anyone}, true, true, alone, false});
  if (alone != kNoLink) {
    frames_.push_back({Heartbeat{false}, true, true, kNoLink, false, alone});
  }
}

// --- Ends ---------------------------------------------------------------------------------------

void ControlPlane::on_quiet() {
  if (!is_closing_ || is_over_) {
    return;
  }
  is_over_ = true;
  actions_.emplace_back(EndWorld{
      Status(ErrorCode::kShutDown,
             "lightcc has been shut down by rank " + std::to_string(closed_by_) +
                 " finishing before the others: its program ended, perhaps with an error, or it "
                 "left while they went on.",
             closed_by_),
      true});
}

// The connection closed because its other end heard first that the world ends in good order.
void ControlPlane::end_if_shut_down(const Frame& frame) {
  const auto* commands = std::get_if<std::vector<Command>>(&frame);
  for (std::size_t i = 0; commands != nullptr && i < commands->size(); ++i) {
    if (const auto* shut_down = std::get_if<ShutDown>(&(*commands)[i])) {
      broadcast(std::vector<Command>{*shut_down}, true, kNoLink);
      is_closing_ = true;
      closed_by_ = shut_down->rank;
      on_quiet();
      return;
    }
  }
}

// What the system refuses concerns this rank, whoever is at the other end of a socket. All ranks
// hear of it in these words.
Status ControlPlane::own_words(const Status& error) const {
  const bool is_own = error.code() == ErrorCode::kSystem || error.code() == ErrorCode::kInternal;
  return is_own ? Status(error.code(),
                         "rank " + std::to_string(options_.rank) + ": " + error.message(),
                         options_.rank)
                : error;
}

void ControlPlane::suspect(const Status& error, TimePoint now, Duration patience) {
  suspicion_ = error;
  suspected_at_ = now;
  is_patient_ = patience > Duration::zero();
  update_deadline_ = now + patience;
  next_tick_ = now;
  wants_advance_ = true;
}

void ControlPlane::fail(const Status& error) {
  if (!is_over_) {
    end_in_error(error, kNoLink);
  }
}

void ControlPlane::end_in_error(const Status& error, LinkIndex except) {
  is_over_ = true;
  sequencer_.reset();
  waiting_.clear();
  (void)reports_.take();
  broadcast(WorldError{error.code(), error.rank(), error.message()}, true, except);
  actions_.emplace_back(EndWorld{error, false});
}

void ControlPlane::broadcast(Frame frame, bool is_urgent, LinkIndex except) {
  const bool to_parent =
      options_.parent.has_value() && !std::holds_alternative<std::vector<Command>>(frame);
  if (to_parent || !options_.children.empty()) {
    frames_.push_back({std::move(frame), to_parent, true, except, is_urgent});
  }
}

}  // namespace lightcc
