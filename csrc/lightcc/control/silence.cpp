#include "lightcc/control/silence.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace lightcc {
namespace {

Status silent(int rank, Duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  return Status(ErrorCode::kTimeout,
                "rank " + std::to_string(rank) + " has been silent for " + std::to_string(seconds) +
                    " s with operations outstanding (LIGHT_PEER_TIMEOUT)",
                rank);
}

}  // namespace

Silence::Silence(Duration timeout, TimePoint now)
    : timeout_(timeout),
      interval_(std::min<Duration>(std::chrono::seconds(1), timeout / 4)),
      last_tick_(now) {}

void Silence::heard_from(int rank, TimePoint now) {
  for (Neighbour& neighbour : neighbours_) {
    if (neighbour.rank == rank) {
      neighbour.last_heard = now;
    }
  }
}

void Silence::note_waiting(int rank, bool waits) {
  for (Neighbour& neighbour : neighbours_) {
    if (neighbour.rank == rank) {
      neighbour.waits = waits;
    }
  }
}

bool Silence::waits_beside(int rank) const {
  return std::ranges::any_of(neighbours_, [rank](const Neighbour& neighbour) {
    return neighbour.waits && neighbour.rank != rank;
  });
}

Status Silence::tick(TimePoint now, bool is_host_busy) {
  // After a pause of this very process (stopped, a suspended machine) nobody else was silent.
  const bool was_away =
      now - std::exchange(last_tick_, now) > std::max(timeout_ / 2, 3 * interval_);
  for (Neighbour& neighbour : neighbours_) {
    if (was_away || !(is_host_busy || waits_beside(neighbour.rank))) {
      // Silence counts from when there is something to wait for.
      neighbour.last_heard = now;
    } else if (now - neighbour.last_heard > timeout_) {
      return silent(neighbour.rank, now - neighbour.last_heard);
    }
  }
  return {};
}

Status Silence::check_since(TimePoint since, TimePoint now) const {
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.last_heard < since) {
      return silent(neighbour.rank, now - neighbour.last_heard);
    }
  }
  return {};
}

}  // namespace lightcc
