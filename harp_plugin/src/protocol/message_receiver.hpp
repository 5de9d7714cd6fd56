// Where arriving payloads go: into the receive that was posted for their message, at their offset.
//
// The k-th message goes to the k-th receive. Packets say which message and which offset they belong
// to, so each is placed once, in whatever order packets come; nothing is reassembled. The receiver
// decides, its caller copies, before the next call.
//
// A packet of a message without a receive is *eager*: its payload waits in one of `eager_packets`
// frames here, and post() copies it to its place. The frames are allocated with the first such
// packet.
//
// A receive may have a *taker* instead of a buffer: payloads are shown to it where they lie, so
// that a reduction reads them without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/events.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"

namespace harp {

/// Sees the payloads of a message as they arrive: each byte once, in any order of offsets, which
/// are multiples of kPssUnit. The bytes are the callee's until it returns, and have any alignment.
struct Taker {
  void (*take)(void* context, std::size_t offset, const void* data, std::size_t bytes) = nullptr;
  void* context = nullptr;
  std::size_t max_bytes = 0;  ///< A longer message is an error.

  void show(std::size_t offset, std::span<const std::byte> bytes) const {
    take(context, offset, bytes.data(), bytes.size());
  }
};

struct ReceiveRequest {
  std::span<std::byte> buffer{};  ///< May be larger than the message.
  Taker taker{};                  ///< Instead of the buffer, if it has a function.
  std::uint64_t cookie = 0;

  std::size_t room() const { return taker.take != nullptr ? taker.max_bytes : buffer.size(); }
};

/// What the caller of on_packet() must do with the payload before the next call.
struct Placement {
  enum class Action : std::uint8_t {
    kNone,
    kCopy,  ///< Copy `payload` to `to`.
    kTake,  ///< Show `payload` to `taker`.
  };

  Action action = Action::kNone;
  std::byte* to = nullptr;
  Taker taker;
  std::span<const std::byte> payload;
  MsgSeq msg_seq = 0;
  std::uint32_t msg_off = 0;
};

class MessageReceiver {
 public:
  enum class Verdict : std::uint8_t {
    kTaken,      ///< Acknowledge it; `placement` says what to do.
    kNoRoom,     ///< Drop it; the sender ignored its credit, or will send it again.
    kTooLong,    ///< Larger than the posted receive.
    kViolation,  ///< Contradicts what was received before.
  };

  struct Limits {
    std::uint32_t max_receives = 256;
    std::uint32_t eager_packets = 186;
  };

  explicit MessageReceiver(const Limits& limits);

  /// The peer's first message number and the agreed packet size; before the first packet.
  void start(MsgSeq first, std::uint16_t pss);

  /// Reckoned from the oldest incomplete message: later ones may be complete already.
  bool has_room() const { return next_to_post_ - oldest_ < limits_.max_receives; }
  /// Posts the next receive. Returns kTooLong where an eager message does not fit, else kTaken.
  Verdict post(const ReceiveRequest& request, EventQueue& events);

  Verdict on_data(const PacketView& packet, EventQueue& events, Placement& placement);

  /// Completes posted receives with `error`, those before message `first_lost` excepted.
  void fail_from(MsgSeq first_lost, SessionError error, EventQueue& events);
  void fail_all(SessionError error, EventQueue& events) { fail_from(oldest_, error, events); }

  /// Messages before it have a buffer.
  MsgSeq msg_limit() const { return next_to_post_; }
  std::size_t posted() const { return posted_; }
  MsgSeq next_to_post() const { return next_to_post_; }
  /// Bytes that were copied from eager frames: the second copy of those bytes.
  std::uint64_t eager_bytes_copied() const { return eager_bytes_copied_; }

 private:
  static constexpr std::size_t kUnknown = ~std::size_t{0};
  static constexpr std::uint16_t kNoFrame = 0xffff;

  struct Message {
    bool is_posted = false;
    bool is_done = false;
    std::uint16_t tag = 0;
    std::uint16_t first_frame = kNoFrame;
    ReceiveRequest request;
    std::size_t received_bytes = 0;
    std::size_t received_packets = 0;
    std::size_t total_bytes = kUnknown;
  };
  struct EagerFrame {
    std::uint32_t msg_off = 0;
    std::uint16_t len = 0;
    std::uint16_t next = kNoFrame;
  };

  Message& at(MsgSeq msg) { return messages_[msg & (messages_.size() - 1)]; }
  bool contradicts(const Message& message, const Header& header) const;
  Verdict put(Message& message, const PacketView& packet, Placement& placement);
  bool take_frame(Message& message, const Header& header, Placement& placement);
  void copy_frames(Message& message);
  bool is_complete(const Message& message) const;
  void complete(MsgSeq msg, EventQueue& events);
  void move_window();

  Limits limits_;
  std::vector<Message> messages_;
  std::vector<EagerFrame> frames_;
  std::vector<std::byte> frame_bytes_;
  std::uint16_t free_frame_ = kNoFrame;
  MsgSeq oldest_ = 0;  ///< The first that is not complete.
  MsgSeq next_to_post_ = 0;
  std::size_t posted_ = 0;
  std::uint64_t eager_bytes_copied_ = 0;
  std::uint16_t pss_ = 0;
};

}  // namespace harp
