// One face for every version of the ABI, as far as a version can do what is asked.
//
// The driver calls the plugin as NCCL would, and hands it what NCCL would at its worst: output
// words that hold leftovers, and before an irecv from version 9 on the value 1. What a plugin
// leaves unwritten is noted against calls.*-written. All methods may be called by any thread that
// the rules of the ABI allow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "abi/layout.hpp"

namespace net_conform {

using harp::abi::Result;

const char* name_of(Result result);

class Driver {
 public:
  virtual ~Driver() = default;

  virtual int version() const = 0;
  virtual const char* name() const = 0;
  /// Names of entries that are null and must not be; empty: none.
  virtual std::string missing_entries() const = 0;

  bool has_contexts() const { return version() >= 11; }
  bool may_block() const { return version() == 4; }
  int max_requests() const {
    return version() <= 6 ? harp::abi::kMaxRequestsV6 : harp::abi::kMaxRequests;
  }
  std::size_t handle_bytes() const {
    return version() == 4 ? harp::abi::kHandleBytesV4 : harp::abi::kHandleBytes;
  }

  virtual Result init(void** context) = 0;
  virtual Result finalize(void* context) = 0;  ///< Does nothing before version 11.
  virtual Result devices(int* count) = 0;
  /// Fields that a version does not have get the values of a host device.
  virtual Result get_properties(int device, harp::abi::PropertiesV12* properties) = 0;
  /// Names of the fields that the plugin does not write.
  virtual std::string unwritten_properties(int device) = 0;
  virtual Result listen(void* context, int device, void* handle, void** comm) = 0;
  virtual Result connect(void* context, int device, void* handle, void** comm) = 0;
  virtual Result accept(void* listen_comm, void** comm) = 0;
  virtual Result reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mr) = 0;
  virtual Result dereg_mr(void* comm, void* mr) = 0;
  virtual Result isend(
      void* comm, void* data, std::size_t bytes, int tag, void* mr, void** request) = 0;
  virtual Result irecv(void* comm,
                       int count,
                       void** data,
                       std::size_t* bytes,
                       int* tags,
                       void** mrs,
                       void** request) = 0;
  virtual Result iflush(
      void* comm, int count, void** data, int* bytes, void** mrs, void** request) = 0;
  virtual Result test(void* request, bool* done, int* bytes) = 0;
  virtual Result close_send(void* comm) = 0;
  virtual Result close_recv(void* comm) = 0;
  virtual Result close_listen(void* comm) = 0;
};

/// `table`: the struct that the library exports for this version, 4 to 12.
std::unique_ptr<Driver> make_driver(int version, const void* table);

/// Notes that the calls so far kept the rules of calls.*, where none was noted as broken.
void note_calls();

}  // namespace net_conform
