// The receiving end of a plugin channel.
//
// What is posted (recv_machine.hpp) is asked of the plugin piece by piece in the order of the
// messages, each with exactly the bytes that the piece has, so that a plugin puts irecv()'s data
// where it belongs and a message of another length is noticed.
//
// A plugin has no buffers of its own to read from. For irecv_fragments() the channel lends it a
// few pieces of memory instead, registered once and small enough to stay in the cache; a fragment
// is such a piece, and releasing it makes room for another. That is one copy more than reading from
// the stack's own buffers would make (docs/harp/engine.md counts them).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lightcc/transport/channel/recv_machine.hpp"
#include "lightcc/transport/plugin/plugin_comm.hpp"
#include "lightcc/transport/plugin/plugin_frame.hpp"
#include "lightcc/transport/plugin/plugin_loop.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

class PluginRecvChannel final : public RecvMachine, private PluginSink {
 public:
  /// Pieces of fragments that may be on their way, or with the caller.
  static constexpr std::size_t kSlots = 4;

  /// `can_receive_to_sink`: the plugin has irecv_take().
  PluginRecvChannel(std::shared_ptr<PluginLoop> loop,
                    const ChannelId& id,
                    bool can_receive_to_sink);
  PluginRecvChannel(const PluginRecvChannel&) = delete;
  PluginRecvChannel& operator=(const PluginRecvChannel&) = delete;
  ~PluginRecvChannel() override;

  /// Takes a connection that the channel lacks.
  void attach(std::unique_ptr<PluginComm> comm, const ChannelHello& hello);
  bool can_receive_to_sink() const override { return can_take_; }

 private:
  struct alignas(kPieceAlignment) CacheLine {
    std::byte bytes[kPieceAlignment];  // NOLINT(modernize-avoid-c-arrays)
  };
  enum class SlotState : std::uint8_t { kFree, kPosted, kArrived, kLent };
  struct Slot {
    SlotState state = SlotState::kFree;
    RequestId message = 0;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  void on_post() override;
  void close() override;
  bool lend(RequestId request, Fragment* fragment) override;
  void take_back(std::size_t bytes) override;
  bool is_active() const override;
  bool pump() override;
  void rest() override;

  bool can_post() const;
  bool post_pieces();
  Result<bool> post_piece(const Posted& posted, std::size_t bytes);
  bool settle(PluginComm& comm);
  void take_piece(const PluginComm::Done& done);
  void settle_piece(RequestId message);
  Status prepare_staging();
  std::span<std::byte> slot_memory(std::size_t slot) const;

  std::shared_ptr<PluginLoop> loop_;
  const bool can_take_;
  std::vector<std::unique_ptr<PluginComm>> comms_;
  PieceCursor next_;           ///< The next piece to post:
  std::size_t turn_ = 0;       ///< at this connection,
  std::size_t next_slot_ = 0;  ///< and, of fragments, with this slot.
  std::size_t under_way_ = 0;  ///< Pieces that the plugin has.
  std::array<Slot, kSlots> slots_{};
  std::unique_ptr<CacheLine[]> staging_;  // NOLINT(modernize-avoid-c-arrays): uninitialised
  std::size_t lent_ = 0;                  ///< The slot of the fragment that is lent.
};

}  // namespace lightcc
