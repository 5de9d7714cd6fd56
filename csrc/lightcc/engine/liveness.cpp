#include "lightcc/engine/liveness.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

namespace lightcc {
namespace {

// The lowest bit of a heartbeat says that the rank has work outstanding; the rest counts.
constexpr std::uint32_t kBusyBit = 1;
constexpr std::uint32_t kOneBeat = 2;

// A process that exits closes its sockets first, and can be asked for its status a little later.
constexpr int kExitMs = 200;

bool has_exited(const UniqueFd& pidfd, int patience_ms) {
  std::array<pollfd, 1> watched = {pollfd{pidfd.get(), POLLIN, 0}};
  return pidfd.valid() && ::poll(watched.data(), watched.size(), patience_ms) > 0;
}

// What its parent will hear of a process, as long as that has not asked, as lightccrun's agents.
std::string end_of(std::int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat, '\0');
  // Behind the name, which may hold anything, the state comes first and the status last.
  const std::size_t name_end = stat.rfind(')');
  const std::size_t last = stat.find_last_of(' ');
  int status = 0;
  if (name_end != std::string::npos && stat.substr(name_end, 4) == ") Z ") {
    std::from_chars(&stat[last + 1], stat.data() + stat.size(), status);
  }
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): not for signals that have a name.
    return "by signal " + std::to_string(number) + " (" + ::strsignal(number) + ")";
  }
  if (status != 0) {
    return "with exit code " + std::to_string(WEXITSTATUS(status)) + ", without exit handlers";
  }
  return "by a signal, or without exit handlers";  // 0 is also what strangers are told.
}

}  // namespace

Result<Liveness> Liveness::start(Membership& world, Waker& waker, std::uint64_t tag_base) {
  Liveness liveness(world);
  const HostMembership& host = world.host;
  for (std::size_t i = 0; i < host.watched.size(); ++i) {
    for (const UniqueFd* const fd : {&host.watched[i].socket, &host.watched[i].pidfd}) {
      if (fd->valid()) {
        LIGHTCC_RETURN_IF_ERROR(waker.watch(fd->get(), tag_base + i));
      }
    }
  }
  for (std::size_t position = 0; position < host.ranks.size(); ++position) {
    const bool is_own = static_cast<int>(position) == host.index;
    if (!is_own && (host.is_leader() || position == 0)) {
      liveness.neighbours_.push_back({host.ranks[position], &host.words[position], 0});
    }
  }
  return liveness;
}

bool Liveness::has_ended(std::size_t index) const {
  const WatchedProcess& watched = world_->host.watched[index];
  if (has_exited(watched.pidfd, 0)) {
    return true;
  }
  std::byte probe{};
  const auto count = ::recv(watched.socket.get(), &probe, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

void Liveness::unwatch(Waker& waker, std::size_t index) const {
  const WatchedProcess& watched = world_->host.watched[index];
  waker.unwatch(watched.socket.get());
  waker.unwatch(watched.pidfd.get());
}

Status Liveness::death_of(std::size_t index) const {
  const WatchedProcess& watched = world_->host.watched[index];
  has_exited(watched.pidfd, kExitMs);
  const int rank = world_->host.ranks[watched.position];
  const std::string process =
      watched.pid > 0 ? " (process " + std::to_string(watched.pid) + ")" : std::string();
  return Status(
      ErrorCode::kPeerFailed,
      "rank " + std::to_string(rank) + process + " ended unexpectedly: " + end_of(watched.pid),
      rank);
}

bool Liveness::is_unexplained(std::size_t index) const {
  const HostMembership& host = world_->host;
  const std::size_t position = host.watched[index].position;
  return position == 0 || host.is_leader() ||
         !host.words[position].is_over.load(std::memory_order_acquire);
}

void Liveness::say_over() {
  const auto own = static_cast<std::size_t>(world_->host.index);
  world_->host.words[own].is_over.store(true, std::memory_order_release);
}

std::vector<int> Liveness::watched_ranks() const {
  std::vector<int> ranks;
  ranks.reserve(neighbours_.size());
  for (const Neighbour& neighbour : neighbours_) {
    ranks.push_back(neighbour.rank);
  }
  return ranks;
}

bool Liveness::host_is_busy() const {
  return std::ranges::any_of(world_->host.words, [](const SleepWord& w) {
    return (w.heartbeat.load(std::memory_order_relaxed) & kBusyBit) != 0;
  });
}

void Liveness::beat(bool is_busy) {
  beats_ += kOneBeat;
  auto& own = world_->host.words[static_cast<std::size_t>(world_->host.index)];
  own.heartbeat.store(beats_ | (is_busy ? kBusyBit : 0), std::memory_order_relaxed);
}

void Liveness::tell(ControlPlane& control, TimePoint now) {
  for (Neighbour& neighbour : neighbours_) {
    const auto count = neighbour.word->heartbeat.load(std::memory_order_relaxed);
    if (std::exchange(neighbour.last_count, count) != count) {
      control.heard_from(neighbour.rank, now);
    }
  }
}

}  // namespace lightcc
