#include "sim/traffic.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "base/time.hpp"
#include "protocol/session.hpp"
#include "sim/host.hpp"

namespace harp::sim {
namespace {

constexpr std::size_t kCanaryBytes = 64;
constexpr std::byte kCanary{0xcc};
constexpr std::size_t kPoolBytes = std::size_t{4} << 20;

/// Random bytes from which all messages are cut, each at a place of its own.
const std::vector<std::byte>& pool() {
  static const std::vector<std::byte> kPool = [] {
    std::vector<std::byte> bytes(kPoolBytes);
    Rng rng(0x4841525);
    for (std::size_t i = 0; i < bytes.size(); i += 8) {
      const std::uint64_t word = rng();
      std::memcpy(bytes.data() + i, &word, sizeof(word));
    }
    return bytes;
  }();
  return kPool;
}

}  // namespace

std::span<const std::byte> Script::content(std::size_t message) const {
  const std::size_t bytes = sizes[message];
  const std::uint64_t position = Rng(content_seed + message * 0x9e3779b97f4a7c15)();
  return std::span(pool()).subspan(position % (kPoolBytes - bytes), bytes);
}

Traffic::Traffic(
    Simulator& simulator, const char* name, const Script& out, const Script& in, Pace pace)
    : simulator_(simulator),
      name_(name),
      out_(out),
      in_(in),
      pace_(pace),
      send_done_(out.sizes.size()),
      inboxes_(in.sizes.size()),
      next_receive_at_(simulator.now() + pace.first_receive) {}

void Traffic::breaks(const std::string& promise) {
  if (broken_.empty()) {
    broken_ = std::string(name_) + ": " + promise;
  }
}

void Traffic::on_accept(Session& session, Time now) {
  if (session_ == nullptr) {
    session_ = &session;
    post(now);
  }
}

void Traffic::act(Time now, std::uint64_t) {
  wake_is_set_ = false;
  if (session_ == nullptr || ended_ || host_->is_dead(now)) {
    return;
  }
  post(now);
  host_->pump(now);
}

void Traffic::post(Time now) {
  while (next_send_ < out_.sizes.size() && posted_sends_ < pace_.max_sends) {
    const PostResult result = session_->post_send(
        {.data = out_.content(next_send_), .tag = out_.tag(next_send_), .cookie = next_send_}, now);
    if (result != PostResult::kPosted) {
      break;
    }
    ++next_send_;
    ++posted_sends_;
  }
  post_receives(now);
}

void Traffic::post_receives(Time now) {
  while (next_receive_ < in_.sizes.size() && posted_receives_ < pace_.max_receives) {
    if (now < next_receive_at_) {
      if (!wake_is_set_) {
        wake_is_set_ = true;
        simulator_.schedule(next_receive_at_, *this, 0);
      }
      return;
    }
    Inbox& inbox = inboxes_[next_receive_];
    const std::size_t capacity = in_.capacities[next_receive_];
    inbox.bytes.assign(capacity + kCanaryBytes, kCanary);
    const PostResult result = session_->post_receive(
        {.buffer = std::span(inbox.bytes).first(capacity), .cookie = next_receive_}, now);
    if (result != PostResult::kPosted) {
      return;
    }
    inbox.is_posted = true;
    ++next_receive_;
    ++posted_receives_;
    next_receive_at_ = now + pace_.think;
  }
}

void Traffic::check_content(std::size_t message, const Event& event) {
  const Inbox& inbox = inboxes_[message];
  const auto expected = in_.content(message);
  if (event.bytes != expected.size() || event.tag != in_.tag(message)) {
    breaks("message " + std::to_string(message) + " has the wrong length or tag");
  } else if (!std::equal(expected.begin(), expected.end(), inbox.bytes.begin())) {
    breaks("message " + std::to_string(message) + " has wrong bytes");
  }
  const bool untouched =
      std::all_of(inbox.bytes.begin() + static_cast<std::ptrdiff_t>(expected.size()),
                  inbox.bytes.end(),
                  [](std::byte byte) { return byte == kCanary; });
  if (!untouched) {
    breaks("bytes behind message " + std::to_string(message) + " were written");
  }
}

void Traffic::on_received(const Event& event, Time now) {
  if (event.cookie >= inboxes_.size() || !inboxes_[event.cookie].is_posted ||
      inboxes_[event.cookie].is_done) {
    breaks("a receive completed twice, or was never posted");
    return;
  }
  inboxes_[event.cookie].is_done = true;
  --posted_receives_;
  if (event.error == SessionError::kNone) {
    check_content(event.cookie, event);
    ++received_;
  }
  inboxes_[event.cookie].bytes = {};  // The application's again, freed: ASan sees late writes.
  check_done(now);
}

void Traffic::check_done(Time now) {
  if (is_done() && done_at_ == kNever) {
    done_at_ = now;
    session_->close(now);
  }
}

void Traffic::on_event(Session& session, const Event& event, Time now) {
  if (&session != session_) {
    return;
  }
  if (trace_ != nullptr) {
    std::fprintf(trace_,
                 "%12.6f ms %s event %d cookie %llu error %s\n",
                 seconds(now.time_since_epoch()) * 1e3,
                 name_,
                 static_cast<int>(event.kind),
                 static_cast<unsigned long long>(event.cookie),
                 session_error_name(event.error));
  }
  switch (event.kind) {
    case Event::Kind::kConnected:
      check_done(now);
      break;
    case Event::Kind::kSendDone:
      if (event.cookie >= send_done_.size() || send_done_[event.cookie]) {
        breaks("a send completed twice");
        break;
      }
      send_done_[event.cookie] = true;
      --posted_sends_;
      sent_ += event.error == SessionError::kNone ? 1 : 0;
      check_done(now);
      break;
    case Event::Kind::kReceiveDone:
      on_received(event, now);
      break;
    case Event::Kind::kPeerClosed:
      break;
    case Event::Kind::kClosed:
      ended_ = true;
      break;
    case Event::Kind::kFailed:
      ended_ = true;
      failure_ = event.error;
      break;
  }
  if (!ended_) {
    post(now);
  }
}

}  // namespace harp::sim
