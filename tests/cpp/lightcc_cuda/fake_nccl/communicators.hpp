// Communicators of the fake NCCL in this process, and what they are told by LIGHTCC_FAKE_NCCL.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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
  static Settings all("LIGHTCC_FAKE_NCCL", {{"version", "22809"}});
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
};

/// A communicator of one rank. Streams run what was called.
struct Comm {
  std::size_t rank = 0;
  std::size_t size = 0;
  std::string name;
  Meeting* meeting = nullptr;
  std::atomic<NcclCode> error{kNcclSuccess};
  std::atomic<bool> is_aborted{false};
  std::atomic<int> running{0};
  std::shared_ptr<RankGpu> gpu = std::make_shared<RankGpu>();
  std::atomic<bool> is_called{false};  // By a thread.
  bool is_finalized = false;
  bool is_connected = false;
  std::vector<double> factors;
  std::uint64_t turn = 0;  // The stream's thread counts it.
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

  /// Blocks until `is_so`; false: it was aborted, or has an error.
  template <typename Condition>
  bool wait(const Condition& is_so) const {
    while (goes_on() && !is_so()) {
      nap();
    }
    return goes_on();
  }

  /// Waits for all ranks; false: it was aborted.
  bool meet() {
    meeting->turns[rank].store(++turn);
    return wait([this] { return all([this](auto other) { return turn_of(other) >= turn; }); });
  }
  std::uint64_t turn_of(std::size_t other) const { return meeting->turns[other].load(); }
  template <typename Condition>
  bool all(const Condition& is_so) const {
    for (std::size_t other = 0; other < size; ++other) {
      if (!is_so(other)) {
        return false;
      }
    }
    return true;
  }
};

/// A call of a communicator by one thread, which blocks. NCCL allows no second one beside it.
class Call {
 public:
  explicit Call(std::shared_ptr<Comm> comm)
      : comm_(std::move(comm)), is_alone_(comm_ == nullptr || !comm_->is_called.exchange(true)) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (comm_ != nullptr && is_alone_) {
      comm_->is_called = false;
    }
  }
  /// Whether it may be made, or what it returns.
  NcclCode check() const {
    if (comm_ == nullptr || comm_->is_aborted || comm_->is_finalized) {
      return kNcclInvalidArgument;
    }
    return is_alone_ ? comm_->error.load() : kNcclInvalidUsage;
  }

 private:
  std::shared_ptr<Comm> comm_;
  bool is_alone_;
};

inline std::mutex comms_mutex;
inline std::map<std::uintptr_t, std::shared_ptr<Comm>> comms;  // By handle, which is a number.
inline std::uintptr_t last_handle = 0;

inline NcclHandle* add(std::shared_ptr<Comm> comm) {
  const std::lock_guard lock(comms_mutex);
  comms[++last_handle] = std::move(comm);
  return reinterpret_cast<NcclHandle*>(last_handle);
}
/// Null: there is no handle.
inline std::shared_ptr<Comm> find(NcclHandle* handle) {
  const std::lock_guard lock(comms_mutex);
  const auto found = comms.find(reinterpret_cast<std::uintptr_t>(handle));
  if (found == comms.end() && handle != nullptr) {  // NCCL would read memory that it has freed.
    (void)std::fprintf(stderr, "fake NCCL: a communicator that is gone is called\n");
    std::abort();
  }
  return found == comms.end() ? nullptr : found->second;
}
inline void remove(NcclHandle* handle) {
  std::shared_ptr<Comm> last;
  const std::lock_guard lock(comms_mutex);
  const auto found = comms.find(reinterpret_cast<std::uintptr_t>(handle));
  last = std::move(found->second);
  comms.erase(found);
}

/// As cudaFree() does: an operation of any communicator on the GPU may be waited for.
inline void wait_for_gpu(const Comm& comm) {
  while (comm.gpu->operations > 0) {
    nap();
  }
}

/// The communicator that a split makes for this rank, once all ranks have called it. Null: none.
inline std::shared_ptr<Comm> split_off(Comm& comm, std::size_t split) {
  auto& calls = comm.meeting->splits[split];
  const Meeting::Split& own = calls[comm.rank];
  if (own.color == kNcclNoColor) {
    return nullptr;
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
      child->join(comm.name + '-' + std::to_string(split) + '-' + std::to_string(own.color));
  comm.error = joined ? kNcclSuccess : kNcclSystemError;
  return child;
}

/// As freeing memory of the GPU, or opening connections, takes its time.
inline void take_time() {
  ::usleep(static_cast<unsigned>(1000 * nccl_settings().number("slow")));
}

}  // namespace lightcc::cuda::fake
