// The part of MPI that carries data, opened at run time, without mpi.h.
//
// Two families of binary interfaces exist. In Open MPI (libmpi.so.40) a handle is the address of an
// exported object; in MPICH and Intel MPI (libmpi.so.12) it is a number of 32 bits. Both pass as a
// pointer. An exported object tells which family a library is of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"

namespace lightcc {

using MpiHandle = void*;

/// MPI's functions by their names. A number is MPI's error code, 0 for success.
struct MpiCalls {
  int (*initialized)(int* flag) = nullptr;
  int (*finalized)(int* flag) = nullptr;
  int (*query_thread)(int* level) = nullptr;
  int (*error_string)(int code, char* text, int* length) = nullptr;
  int (*comm_group)(MpiHandle comm, MpiHandle* group) = nullptr;
  int (*comm_size)(MpiHandle comm, int* size) = nullptr;
  int (*comm_create_group)(MpiHandle comm, MpiHandle group, int tag, MpiHandle* made) = nullptr;
  int (*comm_set_errhandler)(MpiHandle comm, MpiHandle handler) = nullptr;
  int (*comm_free)(MpiHandle* comm) = nullptr;
  int (*group_incl)(MpiHandle group, int count, const int* ranks, MpiHandle* made) = nullptr;
  int (*group_free)(MpiHandle* group) = nullptr;
  int (*test)(MpiHandle* request, int* flag, void* status) = nullptr;
  int (*iallreduce)(const void* in,
                    void* out,
                    int count,
                    MpiHandle type,
                    MpiHandle op,
                    MpiHandle comm,
                    MpiHandle* request) = nullptr;
  int (*ireduce_scatter)(const void* in,
                         void* out,
                         const int* counts,
                         MpiHandle type,
                         MpiHandle op,
                         MpiHandle comm,
                         MpiHandle* request) = nullptr;
  int (*iallgatherv)(const void* in,
                     int in_count,
                     MpiHandle in_type,
                     void* out,
                     const int* counts,
                     const int* offsets,
                     MpiHandle type,
                     MpiHandle comm,
                     MpiHandle* request) = nullptr;
  int (*ialltoallv)(const void* in,
                    const int* in_counts,
                    const int* in_offsets,
                    MpiHandle in_type,
                    void* out,
                    const int* counts,
                    const int* offsets,
                    MpiHandle type,
                    MpiHandle comm,
                    MpiHandle* request) = nullptr;
  int (*ibcast)(void* data,
                int count,
                MpiHandle type,
                int root,
                MpiHandle comm,
                MpiHandle* request) = nullptr;
  int (*ibarrier)(MpiHandle comm, MpiHandle* request) = nullptr;
  int (*isend)(const void* in,
               int count,
               MpiHandle type,
               int peer,
               int tag,
               MpiHandle comm,
               MpiHandle* request) = nullptr;
  int (*irecv)(void* out,
               int count,
               MpiHandle type,
               int peer,
               int tag,
               MpiHandle comm,
               MpiHandle* request) = nullptr;
};

/// One loaded library; it stays loaded. Thread: any, where MPI was initialized for several.
class MpiLibrary {
 public:
  /// Opens the library `path`, which the process has loaded already or which the loader finds.
  /// kInvalidArgument: it cannot be loaded, or is no MPI that is known here.
  static Result<std::shared_ptr<const MpiLibrary>> open(const std::string& path);

  const MpiCalls& calls() const { return calls_; }
  const std::string& path() const { return path_; }

  /// MPI is there for calls of several threads at once. kInvalidArgument: it is not initialized, or
  /// finalized, or initialized for less; the text says how to change that.
  Status check_usable() const;
  /// kShutDown: MPI was finalized, so that no call is allowed any more.
  Status check_not_finalized() const;

  /// Whether `comm` may be a communicator: numbers of other binary interfaces differ.
  bool is_comm(MpiHandle comm) const;

  MpiHandle byte() const { return type_of(DataType::kUint8); }
  /// Of a type in which MPI computes: not kFloat16, kBfloat16 and kBool.
  MpiHandle type_of(DataType dtype) const { return types_[static_cast<std::size_t>(dtype)]; }
  /// Of kSum, kMin, kMax and kProduct.
  MpiHandle op_of(ReduceOp op) const { return ops_[static_cast<std::size_t>(op)]; }
  /// For an input that lies where the output goes.
  const void* in_place() const { return in_place_; }
  /// With it, calls return codes instead of ending the process.
  MpiHandle errors_return() const { return errors_return_; }

  /// Ok, or what MPI says of `code`, which `call` returned on rank `rank`. kSystem.
  Status status_of(int code, const char* call, int rank) const;

 private:
  explicit MpiLibrary(std::string path) : path_(std::move(path)) {}
  Status load();

  std::string path_;
  MpiCalls calls_;
  bool is_open_mpi_ = false;
  std::array<MpiHandle, kDataTypeCount> types_{};
  std::array<MpiHandle, kReduceOpCount> ops_{};
  const void* in_place_ = nullptr;
  MpiHandle errors_return_ = nullptr;
};

}  // namespace lightcc
