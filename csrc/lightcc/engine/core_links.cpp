// What a Core hears: links of the control tree, and descriptors of its host's processes.
#include <algorithm>
#include <utility>

#include "lightcc/engine/core.hpp"
#include "lightcc/engine/host_discovery.hpp"

namespace lightcc {
namespace {

// What a descriptor in the waker stands for: a kind above, a number below.
enum class Source : std::uint64_t { kTransport = 1, kControl = 2, kProcess = 3 };
constexpr unsigned kSourceShift = 32;

constexpr std::uint64_t tag_of(Source source, std::size_t number) {
  return (static_cast<std::uint64_t>(source) << kSourceShift) | number;
}

constexpr Source source_of(std::uint64_t tag) {
  return static_cast<Source>(tag >> kSourceShift);
}

constexpr std::size_t number_of(std::uint64_t tag) {
  return static_cast<std::size_t>(tag & 0xffffffffU);
}

// Links in tags: the parent is 0, children follow.
constexpr LinkIndex link_of(std::size_t number) {
  return number == 0 ? kParentLink : static_cast<LinkIndex>(number) - 1;
}

// While the loop spins it looks at descriptors (a system call) once in so many steps: rarely on one
// host, where they only tell of deaths and new segments, often where control links are sockets.
// There a step looks at the transport alone otherwise.
constexpr std::uint32_t kStepsBetweenDescriptors = 256;
constexpr std::uint32_t kStepsBetweenDescriptorsOnNetwork = 4;

// How long it may take until this rank hears what a rank that is gone has told the leader.
constexpr Duration kExplanationDelay = std::chrono::seconds(2);

}  // namespace

Status Core::watch_descriptors() {
  if (world_.host.mail.fd() >= 0) {
    LIGHTCC_RETURN_IF_ERROR(waker_->watch(world_.host.mail));
  }
  if (world_.parent.has_value() && world_.parent->fd() >= 0) {
    LIGHTCC_RETURN_IF_ERROR(waker_->watch(world_.parent->fd(), tag_of(Source::kControl, 0)));
  }
  for (std::size_t i = 0; i < world_.children.size(); ++i) {
    if (world_.children[i].fd() >= 0) {
      LIGHTCC_RETURN_IF_ERROR(
          waker_->watch(world_.children[i].fd(), tag_of(Source::kControl, i + 1)));
    }
  }
  if (world_.transport != nullptr && world_.transport->wait_fd() >= 0) {
    LIGHTCC_RETURN_IF_ERROR(
        waker_->watch(world_.transport->wait_fd(), tag_of(Source::kTransport, 0)));
    is_transport_watched_ = true;
  }
  LIGHTCC_ASSIGN_OR_RETURN(liveness_,
                           Liveness::start(world_, *waker_, tag_of(Source::kProcess, 0)));
  return {};
}

// --- Links

bool Core::are_descriptors_due() {
  const std::uint32_t interval =
      world_.transport == nullptr ? kStepsBetweenDescriptors : kStepsBetweenDescriptorsOnNetwork;
  return std::exchange(look_at_descriptors_, false) || steps_ % interval == 0 ||
         (world_.transport != nullptr && executor_->idle());  // A word is awaited, and no data.
}

Result<bool> Core::read_links(bool looks) {
  bool moved = false;
  if (looks) {
    LIGHTCC_ASSIGN_OR_RETURN(moved, service_descriptors());
  }
  if (world_.parent.has_value() && world_.parent->fd() < 0) {
    moved = read_link(kParentLink) || moved;
  }
  for (std::size_t i = 0; i < world_.children.size(); ++i) {
    if (world_.children[i].fd() < 0) {
      moved = read_link(static_cast<LinkIndex>(i)) || moved;
    }
  }
  return moved;
}

ControlLink& Core::link(LinkIndex index) {
  return index == kParentLink ? *world_.parent : world_.children[static_cast<std::size_t>(index)];
}

bool Core::read_link(LinkIndex index) {
  ControlLink& from = link(index);
  bool moved = false;
  while (!from.is_broken() && !control_->is_over()) {
    auto frame = from.receive();
    if (!frame.ok()) {
      on_broken_link(index, frame.status());
      return true;
    }
    if (!frame->has_value()) {
      return moved;
    }
    moved = true;
    control_->on_frame(index, std::move(**frame), clock_.now());
  }
  return moved;
}

void Core::on_broken_link(LinkIndex index, const Status& error) {
  ControlLink& broken = link(index);
  broken.mark_broken();
  if (broken.fd() >= 0) {
    waker_->unwatch(broken.fd());
  }
  control_->on_link_closed(index, error, clock_.now());
}

bool Core::flush_links() {
  bool moved = false;
  const auto flush = [&](LinkIndex index) {
    ControlLink& to = link(index);
    if (to.is_broken() || !to.has_backlog()) {
      return;
    }
    const auto sent = to.flush();
    moved = moved || !sent.ok() || *sent;
    if (!sent.ok() && !control_->is_over()) {
      read_link(index);  // Its last words count for more than that it does not listen.
      if (!to.is_broken()) {
        on_broken_link(index, sent.status());
      }
      act();
    }
  };
  if (world_.parent.has_value()) {
    flush(kParentLink);
  }
  for (std::size_t i = 0; i < world_.children.size(); ++i) {
    flush(static_cast<LinkIndex>(i));
  }
  return moved;
}

// A connection closed, and this rank waits for better news: of a link, or of a process of this
// host.
bool Core::listen() {
  if (world_.transport != nullptr && std::exchange(is_transport_watched_, false)) {
    waker_->unwatch(world_.transport->wait_fd());  // Nobody reads it any more.
  }
  std::optional<std::size_t> dead;  // A death counts after what its process said.
  for (const std::uint64_t tag : waker_->ready()) {
    const std::size_t index = number_of(tag);
    if (source_of(tag) == Source::kProcess && liveness_->has_ended(index)) {
      liveness_->unwatch(*waker_, index);
      dead = liveness_->is_unexplained(index) ? index : dead;
    }
  }
  if (world_.parent.has_value()) {
    read_link(kParentLink);
  }
  for (std::size_t i = 0; i < world_.children.size(); ++i) {
    read_link(static_cast<LinkIndex>(i));
  }
  if (dead.has_value()) {
    control_->on_death(liveness_->death_of(*dead));
  }
  const TimePoint now = clock_.now();
  if (now >= control_->next_tick()) {
    liveness_->beat(true);
    liveness_->tell(*control_, now);
    control_->tick(now, true, true);
  }
  control_->advance(now);
  act();
  return over();
}

// --- Descriptors

Result<bool> Core::service_descriptors() {
  const auto tags = waker_->ready();
  for (const std::uint64_t tag : tags) {
    LIGHTCC_RETURN_IF_ERROR(on_descriptor(tag));
  }
  return !tags.empty();
}

Status Core::on_descriptor(std::uint64_t tag) {
  const std::size_t number = number_of(tag);
  switch (source_of(tag)) {
    case Source::kTransport:
      return world_.transport->poll().status();
    case Source::kControl:
      read_link(link_of(number));
      return {};
    case Source::kProcess:
      break;
  }
  if (liveness_->has_ended(number)) {
    on_death(number);
  }
  return {};
}

// A process of this host is gone; what it said before it went counts first.
void Core::on_death(std::size_t index) {
  for (std::size_t i = 0; i < world_.children.size(); ++i) {
    read_link(static_cast<LinkIndex>(i));
  }
  if (world_.parent.has_value()) {
    read_link(kParentLink);
  }
  liveness_->unwatch(*waker_, index);
  if (liveness_->is_unexplained(index)) {
    control_->on_death(liveness_->death_of(index));
  } else {
    departed_.emplace_back(index, clock_.now() + kExplanationDelay);
  }
}

void Core::look_at_departed(TimePoint now) {
  for (const auto& [index, deadline] : departed_) {
    if (now >= deadline) {
      control_->on_death(liveness_->death_of(index));
    }
  }
}

bool Core::may_close() const {
  // Children with a backlog have not heard it yet.
  return control_->is_closing() && !over() && executor_->idle() && !children_have_backlog();
}

bool Core::children_have_backlog() const {
  return std::ranges::any_of(world_.children, [](const ControlLink& child) {
    return child.has_backlog() && !child.is_broken();
  });
}

void Core::read_to_the_end(TimePoint deadline) {
  const auto read = [&](ControlLink& from) {
    while (from.fd() >= 0 && !from.is_broken()) {
      auto frame = from.receive();
      const bool ended = !frame.ok();
      if (ended || (!frame->has_value() &&
                    !wait_readable(from.fd(), deadline, "the end of a control link").ok())) {
        return;
      }
    }
  };
  if (!control_->is_closing()) {
    return;
  }
  if (world_.parent.has_value()) {
    read(*world_.parent);
  }
  for (ControlLink& child : world_.children) {
    read(child);
  }
}

}  // namespace lightcc
