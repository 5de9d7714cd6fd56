#include "lightcc/engine/liveness.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace lightcc {
namespace {

// The lowest bit of a heartbeat says that the rank has work outstanding; the rest counts.
constexpr std::uint32_t kBusyBit = 1;
constexpr std::uint32_t kOneBeat = 2;

UniqueFd open_pidfd(std::int32_t pid) {
  // Not found: an old kernel, or a process of another pid namespace; the sockets have to do.
  return pid > 0 && pid != ::getpid()
             ? UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))
             : UniqueFd();
}

double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Result<Liveness> Liveness::start(
    Membership& world, Waker& waker, std::uint64_t tag_base, Duration peer_timeout, TimePoint now) {
  Liveness liveness(world, peer_timeout);
  liveness.interval_ = std::min<Duration>(std::chrono::seconds(1), peer_timeout / 4);
  liveness.last_tick_ = now;
  HostMembership& host = world.host;
  for (std::size_t place = 0; place < host.pids.size(); ++place) {
    liveness.pidfds_.push_back(open_pidfd(host.pids[place]));
    if (liveness.pidfds_.back().valid()) {
      LIGHTCC_RETURN_IF_ERROR(waker.watch(liveness.pidfds_.back().get(), tag_base + place));
    }
  }
  for (std::size_t place = 0; place < host.ranks.size(); ++place) {
    const bool is_own = static_cast<int>(place) == host.index;
    if (!is_own && (host.is_leader() || place == 0)) {
      liveness.neighbours_.push_back({host.ranks[place], &host.words[place], 0, now});
    }
  }
  if (world.parent.has_value() && world.parent->fd() >= 0) {
    liveness.neighbours_.push_back({world.parent->peer_rank(), nullptr, 0, now});
  }
  for (const ControlLink& child : world.children) {
    if (child.fd() >= 0) {
      liveness.neighbours_.push_back({child.peer_rank(), nullptr, 0, now});
    }
  }
  return liveness;
}

Status Liveness::death_of(std::size_t place) const {
  const HostMembership& host = world_->host;
  const int rank = host.ranks[host.is_leader() ? place : 0];
  return Status(ErrorCode::kPeerFailed,
                "rank " + std::to_string(rank) + " (process " + std::to_string(host.pids[place]) +
                    ") ended unexpectedly",
                rank);
}

void Liveness::heard_from(int rank, TimePoint now) {
  for (Neighbour& neighbour : neighbours_) {
    if (neighbour.rank == rank) {
      neighbour.last_heard = now;
    }
  }
}

bool Liveness::host_is_busy() const {
  return std::ranges::any_of(world_->host.words, [](const SleepWord& w) {
    return (w.heartbeat.load(std::memory_order_relaxed) & kBusyBit) != 0;
  });
}

Status Liveness::tick(TimePoint now, bool busy) {
  beats_ += kOneBeat;
  auto& own = world_->host.words[static_cast<std::size_t>(world_->host.index)];
  own.heartbeat.store(beats_ | (busy ? kBusyBit : 0), std::memory_order_relaxed);
  // After a pause of this very process (stopped, a suspended machine) nobody else was silent.
  const bool was_away =
      now - std::exchange(last_tick_, now) > std::max(timeout_ / 2, 3 * interval_);
  const bool anyone_busy = busy || host_is_busy();
  for (Neighbour& neighbour : neighbours_) {
    if (neighbour.word != nullptr) {
      const auto count = neighbour.word->heartbeat.load(std::memory_order_relaxed);
      if (std::exchange(neighbour.last_count, count) != count) {
        neighbour.last_heard = now;
      }
    }
    if (was_away || !anyone_busy) {
      // Silence counts from when there is something to wait for.
      neighbour.last_heard = now;
    } else if (now - neighbour.last_heard > timeout_) {
      return Status(ErrorCode::kTimeout,
                    "rank " + std::to_string(neighbour.rank) + " has been silent for " +
                        std::to_string(to_seconds(now - neighbour.last_heard)) +
                        " s with operations outstanding (LIGHT_PEER_TIMEOUT)",
                    neighbour.rank);
    }
  }
  return {};
}

}  // namespace lightcc
