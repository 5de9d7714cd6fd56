// Communicators of MPI for groups, made and freed by a thread of their own.
//
// MPI makes a communicator in a call that waits for all members, and the progress loop must not
// wait. All ranks ask for the communicators that they share in one order, and each rank's thread
// makes one after another, so that no two wait for each other in a circle.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/mpi_library.hpp"
#include "lightcc/collectives/mpi_site.hpp"

namespace lightcc {

/// A communicator of its own, freed with this object.
class MpiComm {
 public:
  class Maker;

  explicit MpiComm(std::shared_ptr<Maker> maker) : maker_(std::move(maker)) {}
  MpiComm(const MpiComm&) = delete;
  MpiComm& operator=(const MpiComm&) = delete;
  ~MpiComm();

  /// Whether it is made. Errors: of MPI.
  Result<bool> is_made() const;
  /// Of one that is made.
  MpiHandle handle() const { return handle_; }
  const MpiLibrary& library() const;
  /// This process's rank of the world, for messages.
  int world_rank() const;
  /// It is not freed: operations on it have not ended.
  void keep() { is_kept_.store(true, std::memory_order_relaxed); }

 private:
  friend class Maker;
  friend class MpiComms;

  std::shared_ptr<Maker> maker_;
  std::atomic<bool> is_done_{false};  // Set after the two below.
  MpiHandle handle_ = nullptr;
  Status status_;
  std::atomic<bool> is_kept_{false};
};

/// Makes the communicators of one world. Thread: one at a time.
class MpiComms {
 public:
  /// Checks MPI, starts the thread and asks for a communicator of the world, on which the others
  /// are made. kInvalidArgument: MPI cannot be used so.
  static Result<std::unique_ptr<MpiComms>> make(const MpiSite& site, int world_rank);
  MpiComms(const MpiComms&) = delete;
  MpiComms& operator=(const MpiComms&) = delete;
  /// Waits for what was asked for, but not for ever: a peer that is gone never comes.
  ~MpiComms();

  /// A communicator of these ranks of the world, in this order; this rank is among them. They all
  /// ask for it in the same order among others.
  std::shared_ptr<MpiComm> ask(const std::vector<std::int32_t>& ranks);

 private:
  explicit MpiComms(std::shared_ptr<MpiComm::Maker> maker) : maker_(std::move(maker)) {}

  std::shared_ptr<MpiComm::Maker> maker_;
  std::shared_ptr<MpiComm> world_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace lightcc
