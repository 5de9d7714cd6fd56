// The receiving end of a plugin channel.
//
// Receives are posted to the plugin piece by piece in the order of the messages, each with exactly
// the bytes that the piece has, so that a plugin puts irecv()'s data where it belongs and a message
// of another length is noticed.
//
// A plugin has no buffers of its own to read from. For irecv_fragments() the channel lends it a
// few pieces of memory instead, registered once and small enough to stay in the cache; a fragment
// is such a piece, and releasing it makes room for another. That is one copy more than reading from
// the stack's own buffers would make (docs/harp/engine.md counts them).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/transport/message_queue.hpp"
#include "lightcc/transport/plugin/plugin_comm.hpp"
#include "lightcc/transport/plugin/plugin_frame.hpp"
#include "lightcc/transport/plugin/plugin_loop.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

class PluginRecvChannel final : public RecvChannel, private PluginSink {
 public:
  /// Pieces of fragments that may be on their way, or with the caller.
  static constexpr std::size_t kSlots = 4;

  /// `can_take`: the plugin has irecv_take().
  PluginRecvChannel(std::shared_ptr<PluginLoop> loop, const ChannelId& id, bool can_take);
  PluginRecvChannel(const PluginRecvChannel&) = delete;
  PluginRecvChannel& operator=(const PluginRecvChannel&) = delete;
  ~PluginRecvChannel() override;

  /// Runs when the channel is destroyed.
  void set_on_destroyed(std::function<void()> on_destroyed) {
    on_destroyed_ = std::move(on_destroyed);
  }
  /// Whether a connection with this hello belongs to the sender that this channel hears, and is
  /// missing.
  bool lacks(const PluginHello& hello) const;
  /// Whether a receive waits for connections.
  bool waits_for_sender() const { return !queue_.is_over() && missing_ > 0 && !queue_.empty(); }
  /// The attempt of the sender that this channel hears; 0 before the first connection.
  std::uint64_t attempt() const { return attempt_; }
  /// Takes a connection that the channel lacks.
  void attach(std::unique_ptr<PluginComm> comm, const PluginHello& hello);

  Result<RequestId> irecv(std::span<std::byte> into) override;
  Result<RequestId> irecv_fragments(std::size_t bytes) override;
  Result<std::optional<Fragment>> next_fragment(RequestId request) override;
  void release(const Fragment& fragment) override;
  bool can_take() const override { return can_take_; }
  Result<RequestId> irecv_taken(std::size_t bytes, const FragmentTaker& taker) override;
  Result<bool> test(RequestId request) override;
  void cancel() override;

 private:
  struct alignas(kPieceAlignment) CacheLine {
    std::byte bytes[kPieceAlignment];  // NOLINT(modernize-avoid-c-arrays)
  };
  struct Posted {
    std::span<std::byte> into;  ///< Unused for fragments.
    std::size_t total = 0;
    bool fragments = false;
    FragmentTaker taker;            ///< If it has a function, instead of both.
    std::uint64_t pieces_left = 0;  ///< Not arrived, or not released.
  };
  enum class SlotState : std::uint8_t { kFree, kPosted, kArrived, kLent };
  struct Slot {
    SlotState state = SlotState::kFree;
    RequestId message = 0;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  bool is_active() const override;
  bool pump() override;
  void rest() override;

  Result<RequestId> post(Posted posted);
  bool can_post() const;
  bool post_pieces();
  Result<bool> post_piece(const Posted& posted, std::size_t bytes);
  bool settle(PluginComm& comm);
  void take_piece(const PluginComm::Done& done);
  void finish_piece(RequestId message);
  Status prepare_staging();
  std::span<std::byte> slot_memory(std::size_t slot) const;
  void fail(const Status& status);

  std::shared_ptr<PluginLoop> loop_;
  const ChannelId id_;
  const bool can_take_;
  std::function<void()> on_destroyed_;
  std::uint64_t attempt_ = 0;
  std::vector<std::unique_ptr<PluginComm>> comms_;
  std::size_t missing_ = 1;  ///< Connections; one before the first has said how many.
  std::size_t piece_bytes_ = 0;
  MessageQueue<Posted> queue_;
  RequestId cut_message_ = 0;   ///< The next piece to post: of this message,
  std::size_t cut_offset_ = 0;  ///< from this byte on,
  std::size_t turn_ = 0;        ///< at this connection,
  std::size_t next_slot_ = 0;   ///< and, of fragments, with this slot.
  std::size_t under_way_ = 0;   ///< Pieces that the plugin has.
  std::array<Slot, kSlots> slots_{};
  std::unique_ptr<CacheLine[]> staging_;  // NOLINT(modernize-avoid-c-arrays): uninitialised
  std::optional<std::size_t> lent_;
};

}  // namespace lightcc
