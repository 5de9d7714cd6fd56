#include "lightcc/engine/liveness.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
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

UniqueFd open_pidfd(std::int32_t pid) {
  // Not found: an old kernel, or a process of another pid namespace; the sockets have to do.
  return pid > 0 && pid != ::getpid()
             ? UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))
             : UniqueFd();
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
  HostMembership& host = world.host;
  for (std::size_t position = 0; position < host.pids.size(); ++position) {
    liveness.pidfds_.push_back(open_pidfd(host.pids[position]));
    if (liveness.pidfds_.back().valid()) {
      LIGHTCC_RETURN_IF_ERROR(waker.watch(liveness.pidfds_.back().get(), tag_base + position));
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

Status Liveness::death_of(std::size_t position) const {
  const HostMembership& host = world_->host;
  const int rank = host.ranks[host.is_leader() ? position : 0];
  return Status(ErrorCode::kPeerFailed,
                "rank " + std::to_string(rank) + " (process " +
                    std::to_string(host.pids[position]) +
                    ") ended unexpectedly: " + end_of(host.pids[position]),
                rank);
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
