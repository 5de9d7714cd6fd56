// Communicators of the fake NCCL in this process, and what they are told by LIGHTCC_FAKE_NCCL.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lightcc_cuda/fake_driver/settings.hpp"
#include "lightcc_cuda/fake_nccl/meeting.hpp"
#include "lightcc_cuda/nccl/functions.hpp"

namespace lightcc::cuda::fake {

inline Settings& nccl_settings() {
  static Settings all("LIGHTCC_FAKE_NCCL", {{"version", "21805"}});
  return all;
}

inline void nap() {
  ::usleep(50);
}

struct Comm;

/// A GPU of one rank, for all communicators that were split off one.
struct RankGpu {
  std::atomic<int> operations{0};  // That are on streams.
  std::atomic<int> called{0};
  std::atomic<int> begun{0};
  std::atomic<bool> is_taken{false};  // By an operation, where there is room for one only.
  // The communicator whose operation is not on its stream yet.
  std::atomic<const Comm*> caller{nullptr};
};

/// A communicator of one rank. The launcher calls, streams run what was called.
struct Comm {
  std::size_t rank = 0;
  std::size_t size = 0;
  std::string name;
  Meeting* meeting = nullptr;
  std::atomic<NcclCode> error{kNcclSuccess};
  std::atomic<bool> is_aborted{false};
  std::atomic<int> running{0};
  std::shared_ptr<RankGpu> gpu = std::make_shared<RankGpu>();
  bool is_made = false;
  bool is_finalized = false;
  bool is_connecting = false;           // For an operation, without end.
  int answers_left = 0;                 // That are still "in progress".
  std::function<void()> put_on_stream;  // The last call's, until then.
  std::vector<double> factors;
  std::uint64_t turn = 0;  // The stream's thread counts it.
  // The split that goes on.
  NcclHandle** split_to = nullptr;
  std::size_t split = 0;
  std::size_t splits = 0;

  ~Comm() {
    if (meeting != nullptr) {
      ::shm_unlink(name.c_str());
      meeting->close();
    }
  }

  bool join(std::string file) {
    name = std::move(file);
    meeting = Meeting::open(name);
    if (meeting != nullptr) {
      meeting->joined.fetch_add(1);
    }
    return meeting != nullptr;
  }

  bool goes_on() const { return !is_aborted && error == kNcclSuccess; }

  /// Waits for all ranks; false: it was aborted.
  bool meet() {
    meeting->turns[rank].store(++turn);
    for (std::size_t other = 0; other < size; ++other) {
      while (meeting->turns[other].load() < turn) {
        if (!goes_on()) {
          return false;
        }
        nap();
      }
    }
    return goes_on();
  }
};

inline std::mutex comms_mutex;
inline std::map<std::uintptr_t, std::shared_ptr<Comm>> comms;  // By handle, which is a number.
inline std::uintptr_t last_handle = 0;

inline NcclHandle* add(std::shared_ptr<Comm> comm) {
  const std::lock_guard lock(comms_mutex);
  comms[++last_handle] = std::move(comm);
  return reinterpret_cast<NcclHandle*>(last_handle);
}
inline std::shared_ptr<Comm> find(NcclHandle* handle) {
  const std::lock_guard lock(comms_mutex);
  const auto found = comms.find(reinterpret_cast<std::uintptr_t>(handle));
  return found == comms.end() ? nullptr : found->second;
}
inline void remove(NcclHandle* handle) {
  std::shared_ptr<Comm> last;
  const std::lock_guard lock(comms_mutex);
  const auto found = comms.find(reinterpret_cast<std::uintptr_t>(handle));
  last = std::move(found->second);
  comms.erase(found);
}

/// Whether a call may be made, or what it returns.
inline NcclCode check_ready(const std::shared_ptr<Comm>& comm) {
  if (comm == nullptr || comm->is_aborted || comm->is_finalized) {
    return kNcclInvalidArgument;
  }
  if (!comm->is_made || comm->answers_left > 0 || comm->split_to != nullptr ||
      comm->is_connecting) {
    return kNcclInvalidArgument;  // The call before has not ended.
  }
  return comm->error;
}

/// As cudaFree() does: an operation of any communicator on the GPU may be waited for.
inline void wait_for_gpu(const Comm& comm) {
  while (comm.gpu->operations > 0) {
    nap();
  }
}

/// The operation that was called last is on its stream from now on, or is given up.
inline void end_call(Comm& comm, bool is_given_up = false) {
  const Comm* caller = &comm;
  comm.gpu->caller.compare_exchange_strong(caller, nullptr);
  const auto put = std::exchange(comm.put_on_stream, nullptr);
  if (put && !is_given_up) {
    put();
  }
}

/// Goes on with what communicator and caller wait for.
inline void advance(Comm& comm) {
  if (!comm.is_made && comm.meeting->joined.load() >= comm.size) {
    comm.is_made = true;
  }
  if (comm.split_to == nullptr) {
    return;
  }
  auto& calls = comm.meeting->splits[comm.split];
  for (std::size_t rank = 0; rank < comm.size; ++rank) {
    if (calls[rank].is_called.load() == 0) {
      return;
    }
  }
  NcclHandle** const to = std::exchange(comm.split_to, nullptr);
  const Meeting::Split& own = calls[comm.rank];
  if (own.color == kNcclNoColor) {
    return;
  }
  auto child = std::make_shared<Comm>();
  child->gpu = comm.gpu;
  for (std::size_t rank = 0; rank < comm.size; ++rank) {
    const Meeting::Split& other = calls[rank];
    if (other.color == own.color) {
      ++child->size;
      child->rank += std::pair(other.key, rank) < std::pair(own.key, comm.rank) ? 1U : 0U;
    }
  }
  const bool joined =
      child->join(comm.name + '-' + std::to_string(comm.split) + '-' + std::to_string(own.color));
  if (!joined) {
    comm.error = kNcclSystemError;
    return;
  }
  *to = add(std::move(child));
}

}  // namespace lightcc::cuda::fake
