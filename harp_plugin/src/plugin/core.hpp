// What is behind the function tables: the network of a plugin, in C++ and in the newest version's
// terms.
//
// A plugin implements these classes and defines kPluginName and net(); entries.hpp turns them into
// every version of the ABI. The rules are NCCL's (docs/harp/abi.md): nothing here blocks, "not yet"
// is success with nothing handed out, and any error ends the communicator. An implementation may
// throw; the guard around each entry turns what it throws into a result.
//
// Threads: objects of different communicators are used by different threads at once. One data comm
// is used by one thread (NCCL's progress thread), except for reg_mr() and dereg_mr(), which another
// one (the service thread) may call at the same time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "abi/layout.hpp"

namespace harp::plugin {

using abi::Result;

/// The name that NCCL shows and that NCCL_NET chooses. Defined by each plugin.
// NOLINTNEXTLINE(modernize-avoid-c-arrays,readability-identifier-naming): tables hold its address.
extern const char kPluginName[];

/// What listen() tells the peer. The smallest buffer of all versions, so that one form fits all.
using Handle = std::array<std::byte, abi::kHandleBytesV4>;

/// Most buffers that one grouped receive may have, whatever a plugin promises.
inline constexpr int kMaxGroupedReceives = 8;

/// One operation under way. It belongs to its comm; the pointer is dead once test() has said done,
/// has failed, or the comm was closed.
class Request {
 public:
  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  virtual ~Request() = default;

  /// Moves the comm on. `bytes`: null, or room for one count for each buffer, written when done.
  virtual Result test(bool* done, int* bytes) = 0;
};

/// What an opaque pointer from NCCL is; a comm of another kind is refused rather than misread.
enum class CommKind : std::uint32_t {
  kListen = 0x4c697374,
  kSend = 0x53656e64,
  kRecv = 0x52656376
};

class Comm {
 public:
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  virtual ~Comm() = default;
  CommKind kind() const { return kind_; }

 protected:
  explicit Comm(CommKind kind) : kind_(kind) {}

 private:
  CommKind kind_;
};

/// A comm that moves data. Its destructor may not wait for the peer, and requests may be under way.
class DataComm : public Comm {
 public:
  /// Thread: any. `type`: one of abi::kPtr*.
  virtual Result reg_mr(void* data, std::size_t bytes, int type, void** mr) = 0;
  /// Thread: any. Requests that use the memory may be under way when the comm is about to be
  /// closed.
  virtual Result dereg_mr(void* mr) = 0;

 protected:
  using Comm::Comm;
};

class SendComm : public DataComm {
 public:
  /// Starts to send, or leaves `request` null for "not now".
  virtual Result isend(
      const void* data, std::size_t bytes, int tag, void* mr, Request** request) = 0;

 protected:
  SendComm() : DataComm(CommKind::kSend) {}
};

/// One buffer of a grouped receive.
struct RecvBuffer {
  void* data;
  std::size_t bytes;
  int tag;
  void* mr;
};

class RecvComm : public DataComm {
 public:
  /// Starts to receive one message into each buffer, or leaves `request` null for "not now".
  virtual Result irecv(std::span<const RecvBuffer> buffers, Request** request) = 0;
  /// Makes received data visible to the GPU; null when there is nothing to wait for.
  virtual Result iflush(std::span<const RecvBuffer> buffers, Request** request) = 0;

 protected:
  RecvComm() : DataComm(CommKind::kRecv) {}
};

class ListenComm : public Comm {
 public:
  /// The next connection, or leaves `comm` empty. What it hands out does not depend on the
  /// listener.
  virtual Result accept(std::unique_ptr<RecvComm>* comm) = 0;

 protected:
  ListenComm() : Comm(CommKind::kListen) {}
};

struct ContextOptions {
  std::uint64_t comm_id = 0;
  int traffic_class = abi::kTrafficClassUndefined;
  abi::Profiler profiler = nullptr;
};

/// One communicator of NCCL; up to version 10, all of a process with the same traffic class.
class Context {
 public:
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  virtual ~Context() = default;

  /// Thread: any.
  virtual Result listen(int device, Handle* handle, std::unique_ptr<ListenComm>* comm) = 0;
  /// Called again with the same handle, at any address, until `comm` is filled. Must come to its
  /// end without the peer's accept(). Thread: any.
  virtual Result connect(int device, const Handle& handle, std::unique_ptr<SendComm>* comm) = 0;
};

/// The network of this process. Thread: any, for all of it.
class Net {
 public:
  Net() = default;
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;
  virtual ~Net() = default;

  virtual Result make_context(const ContextOptions& options, std::unique_ptr<Context>* context) = 0;
  virtual Result devices(int* count) = 0;
  /// Fills every field. Its strings live as long as the process.
  virtual Result properties(int device, abi::PropertiesV12* properties) = 0;

  /// How long version 4, whose connect() and accept() block, waits in them.
  virtual std::chrono::milliseconds blocking_limit() const { return std::chrono::minutes(10); }
  /// Between two attempts of version 4. Blocks: a millisecond at most.
  virtual void pause() const;
};

/// The one of this plugin, defined by it. It is made at the first call, and never destroyed:
/// threads that NCCL forgot may still call in while the process exits.
Net& net();

}  // namespace harp::plugin
