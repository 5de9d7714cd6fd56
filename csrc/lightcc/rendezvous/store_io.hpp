// Sending and receiving on a store connection, with a deadline: for the two kinds of client.
#pragma once

#include <cstdint>
#include <span>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/wire/store_messages.hpp"

namespace lightcc::detail {

enum class StoreIo : std::uint8_t { kDone, kLost, kLate };

/// Blocks: until the deadline at most, as the next. Both give up, with kLate, when `stop_fd` (if
/// not negative) becomes readable.
StoreIo send_to_store(int fd,
                      std::span<const std::byte> bytes,
                      TimePoint deadline,
                      int stop_fd = -1);

/// Answers as they arrive; what has arrived of one that is late is kept.
class StoreInbox {
 public:
  /// kDone: `body` is the next frame's. Error: the server does not keep the protocol.
  Result<StoreIo> receive(int fd, TimePoint deadline, Bytes& body, int stop_fd = -1);

 private:
  Bytes in_;
};

/// What a get says that found nothing in time, and the like.
Status late_answer(const StoreRequest& request, const std::string& server, bool was_lost);

}  // namespace lightcc::detail
