// Messages one way, as NCCL's progress thread moves them: up to a window of requests under way, the
// oldest one tested, everything about every one of them checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "side.hpp"

namespace net_conform {

/// One message: how long it is, and how long the buffer is that waits for it.
struct Message {
  std::size_t bytes = 0;
  std::size_t posted_bytes = 0;
  int tag = 7;
};

std::vector<Message> equal_messages(std::size_t count, std::size_t bytes, std::size_t posted_bytes);

struct StreamOptions {
  std::uint64_t seed = 1;
  std::size_t window = 8;
  std::size_t misalignment = 0;          ///< Bytes by which buffers miss a multiple of 64, or so.
  const char* content = "data.content";  ///< The rule that wrong bytes break.
  bool wants_sizes = true;               ///< Whether test() is asked for sizes.
  bool tests_newest_first = false;
};

/// All of `messages`, from the first isend to the last test. Overwrites each buffer once it is
/// sent.
void send_stream(Side& side,
                 void* comm,
                 const std::vector<Message>& messages,
                 const StreamOptions& options);
void recv_stream(Side& side,
                 void* comm,
                 const std::vector<Message>& messages,
                 const StreamOptions& options);

/// A's or B's half of a stream from A to B, on the calling thread.
void move_stream(Side& side,
                 void* comm,
                 const std::vector<Message>& messages,
                 const StreamOptions& options);
/// The same on the side's progress thread; returns when it is through.
void run_stream(Side& side,
                void* comm,
                const std::vector<Message>& messages,
                const StreamOptions& options);

/// A buffer that is registered with a comm for as long as it lives.
class Registered {
 public:
  Registered(Side* side, void* comm, std::span<std::byte> data);
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  Registered(Registered&& other) noexcept
      : side_(other.side_),
        comm_(other.comm_),
        mr_(other.mr_),
        is_active_(std::exchange(other.is_active_, false)) {}
  Registered& operator=(Registered&&) = delete;
  ~Registered() { release(); }
  void* mr() const { return mr_; }
  void release();

 private:
  Side* side_;
  void* comm_;
  void* mr_ = nullptr;
  bool is_active_ = false;
};

/// One request of a comm, for cases that need a hand on each.
struct Request {
  void* pointer = nullptr;
  std::size_t bytes = 0;  ///< The message's, or those posted.
};

/// A's isend, or B's irecv, of one buffer.
Result try_post(
    Side& side, void* comm, std::span<std::byte> data, void* mr, void** request, int tag = 7);
/// The same until it is taken.
Request post(Side& side, void* comm, std::span<std::byte> data, void* mr);
/// test until done; the size that it told.
int finish(Side& side, const Request& request, const char* rule);

}  // namespace net_conform
