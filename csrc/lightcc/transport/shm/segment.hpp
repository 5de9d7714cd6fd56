// Shared memory without a name, and the passing of descriptors to the ranks of a host.
//
// A segment is a memfd: nothing appears in /dev/shm (which containers limit to 64 MiB) and nothing
// is left behind, however the processes end. All of its pages are allocated when it is made, so a
// full machine or memory limit is an error with a number in it then, not a SIGBUS later; and it is
// sealed against shrinking, so no other holder of the descriptor can take the pages away. A process
// maps a page when it first uses it: of the windows of many ranks, each one uses few.
//
// Not handled: huge pages (the kernel's shmem_enabled decides) and NUMA placement.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/net/socket_address.hpp"

namespace lightcc {

class ShmSegment {
 public:
  ShmSegment() = default;
  ~ShmSegment() { unmap(); }
  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  /// Makes a zeroed segment of at least `bytes` bytes and maps it.
  /// Errors: kSystem, naming the bytes wanted and what to do.
  static Result<ShmSegment> create(std::size_t bytes);
  /// Maps a segment that another process made. Errors: kPeerFailed when `fd` is not a sealed
  /// segment of at least `bytes` bytes; kSystem when it cannot be mapped.
  static Result<ShmSegment> map(UniqueFd fd, std::size_t bytes);

  /// Page-aligned. Empty for a default-made segment.
  std::span<std::byte> memory() const { return memory_; }
  /// To pass on; stays open as long as this segment, or until it is given up.
  int fd() const { return fd_.get(); }
  /// The memory stays without its descriptor.
  UniqueFd give_up_fd() { return std::move(fd_); }

 private:
  static Result<ShmSegment> map_pages(UniqueFd fd, std::size_t bytes);
  void unmap();

  UniqueFd fd_;
  std::span<std::byte> memory_;
};

/// Most descriptors of one message (the kernel's own limit).
inline constexpr std::size_t kMaxPassedFds = 253;
/// Most payload bytes of one message: small enough to be sent whole or not at all.
inline constexpr std::size_t kMaxFdPayload = 4096;

/// Sends 1..kMaxFdPayload bytes and up to kMaxPassedFds descriptors over a connected Unix socket
/// (SOCK_STREAM or SOCK_SEQPACKET), or as a datagram to `to`. False: the socket is full, nothing
/// was sent. Blocks: never. Errors: kInvalidArgument for sizes; kPeerFailed when the other end is
/// gone; kSystem.
Result<bool> send_fds(int socket,
                      std::span<const std::byte> payload,
                      std::span<const int> fds,
                      const SocketAddress* to = nullptr);

struct ReceivedFds {
  std::size_t payload_bytes = 0;  ///< How much of the payload buffer was filled; at least 1.
  std::vector<UniqueFd> fds;      ///< Close-on-exec.
};
/// Receives one message of send_fds(): at most payload.size() bytes and at most `max_fds`
/// descriptors. On SOCK_STREAM `payload` must have exactly the size that was sent, or messages run
/// into one another. Nothing: none has arrived. Blocks: never.
/// Errors: kPeerFailed when the other end closed or sent more than that (what came with it is
/// closed); kInvalidArgument; kSystem, also when this process may not open what was passed.
Result<std::optional<ReceivedFds>> recv_fds(int socket,
                                            std::span<std::byte> payload,
                                            std::size_t max_fds);

}  // namespace lightcc
