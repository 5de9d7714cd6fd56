// An operation over MPI in rounds, at most two of them under way.
//
// A round is one non-blocking call of MPI on memory of ours: what it sends is copied there, and
// what it receives is copied from there. MPI cannot take back a collective that it has begun, and
// so the caller's memory never goes to MPI. What a dropped Work leaves behind under MPI stays until
// the process ends. Rounds also keep counts within MPI's int, and copy one while the other travels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/mpi_comms.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// What MPI reads and writes during one round.
struct MpiSlot {
  struct Free {
    void operator()(std::byte* taken) const { std::free(taken); }
  };

  std::unique_ptr<std::byte, Free> memory;
  std::size_t bytes = 0;  // Of `memory`.
  // Counts and offsets of the call, in its types.
  std::vector<int> counts, offsets, in_counts, in_offsets;
  MpiHandle request = nullptr;

  /// Makes `memory` at least so large. kSystem.
  Status reserve(std::size_t wanted);
};

/// What a group and its Works share. Thread: the one that drives the progress loop.
class MpiLink {
 public:
  MpiLink(std::shared_ptr<MpiComm> comm, int rank, int size)
      : comm_(std::move(comm)), rank_(rank), size_(size) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::size_t members() const { return static_cast<std::size_t>(size_); }
  const MpiLibrary& library() const { return comm_->library(); }
  const MpiCalls& mpi() const { return library().calls(); }
  MpiHandle comm() const { return comm_->handle(); }

  /// Not ok once a Work has failed or was dropped.
  const Status& status() const { return status_; }
  /// Ok, or what MPI says of the code that `call` returned.
  Status check(int code, const char* call) const {
    return library().status_of(code, call, comm_->world_rank());
  }
  std::unique_ptr<MpiSlot> take();
  void give_back(std::unique_ptr<MpiSlot> slot) { free_.push_back(std::move(slot)); }
  /// The group ends: MPI still uses this slot.
  void abandon(std::unique_ptr<MpiSlot> slot);
  void fail(const Status& status);

 private:
  std::shared_ptr<MpiComm> comm_;
  int rank_;
  int size_;
  Status status_;
  std::vector<std::unique_ptr<MpiSlot>> free_;
};

class MpiWork : public Work {
 public:
  MpiWork(const MpiWork&) = delete;
  MpiWork& operator=(const MpiWork&) = delete;
  ~MpiWork() override;
  Result<Progress> advance() final;

 protected:
  /// `call`: what a round calls, for messages.
  MpiWork(std::shared_ptr<MpiLink> link, const char* call) : link_(std::move(link)), call_(call) {}

  MpiLink& link() const { return *link_; }
  const MpiCalls& mpi() const { return link_->mpi(); }
  void set_rounds(std::size_t rounds) { rounds_ = rounds; }

  /// Bytes of memory that a round needs.
  virtual std::size_t bytes_of(std::size_t round) const = 0;
  /// Fills the memory and calls MPI, whose code is returned.
  virtual int begin(std::size_t round, MpiSlot& slot) = 0;
  /// Takes the results out.
  virtual void end(std::size_t round, MpiSlot& slot) = 0;

 private:
  static constexpr std::size_t kUnderWay = 2;

  Status begin_next();
  Result<bool> end_next();

  std::shared_ptr<MpiLink> link_;
  const char* call_;
  std::size_t rounds_ = 0;
  std::size_t begun_ = 0;
  std::size_t ended_ = 0;
  std::array<std::unique_ptr<MpiSlot>, kUnderWay> slots_;  // By round, modulo.
};

}  // namespace lightcc
