// One connection of a plugin: its requests, oldest first, and what memory is registered for them.
//
// Plugins get registered memory only. A registration holds as long as a message needs it: a library
// cannot know when its caller gives memory back to the system, and a plugin that has pinned pages
// would go on using the old ones. So pieces of one message share one registration, requests of
// other messages share it while they overlap in time, and forget_idle() ends it. Memory of our own
// is pinned for good.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/transport/plugin/plugin_library.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

class PluginComm {
 public:
  enum class Kind : std::uint8_t { kSend, kRecv };
  /// Requests under way: what every version promises that a plugin can take.
  static constexpr std::size_t kWindow = 8;

  struct Done {
    std::uint64_t cookie = 0;
    std::size_t bytes = 0;     ///< That were received.
    std::size_t expected = 0;  ///< Bytes that were asked for.
  };

  /// Owns `comm`. `peer`: the rank at the other end, for errors.
  PluginComm(std::shared_ptr<PluginContext> context, void* comm, Kind kind, std::uint32_t peer);
  PluginComm(const PluginComm&) = delete;
  PluginComm& operator=(const PluginComm&) = delete;
  /// Closes, with requests under way or not; no memory is touched afterwards.
  ~PluginComm();

  bool is_full() const { return count_ == kWindow; }
  bool is_idle() const { return count_ == 0; }
  /// The peer, once it is known (a connection is accepted before it says who it is).
  void set_peer(std::uint32_t peer) { peer_ = peer; }

  /// Starts to send or receive `piece`, a part of `whole`, all of which stays valid until
  /// forget_idle(). False: not now. Call only when not full.
  Result<bool> post(std::span<std::byte> piece, std::span<std::byte> whole, std::uint64_t cookie);
  /// As post(), to receive `bytes` through `sink`, which begin at byte `offset` of its
  /// message. Call only where the plugin has irecv_take().
  Result<bool> post_to_sink(std::size_t bytes,
                            std::size_t offset,
                            const FragmentSink& sink,
                            std::uint64_t cookie);
  /// Whether the oldest request is done; it is forgotten then. Call only when not idle.
  Result<bool> settle_oldest(Done* done);
  /// Nothing is under way: what was received is acknowledged now, if the plugin has kept that back.
  void rest();

  /// Memory of the connection's own, for its hello; empty messages lie there, too.
  std::span<std::byte> small_memory() { return small_; }
  /// Registers `memory` until the end of the connection.
  Status pin(std::span<std::byte> memory);
  /// Ends registrations that no request uses.
  void forget_idle();

 private:
  struct Registration {
    std::span<std::byte> memory;
    void* mr = nullptr;
    std::size_t uses = 0;
  };
  struct SinkAt {
    FragmentSink sink;
    std::size_t offset = 0;
  };
  struct Request {
    void* request = nullptr;
    void* mr = nullptr;
    std::uint64_t cookie = 0;
    std::size_t bytes = 0;
  };

  static void take(void* context, std::size_t offset, const void* data, std::size_t bytes);
  Result<Registration*> registration_of(std::span<std::byte> piece, std::span<std::byte> whole);
  void stop_using(void* mr);
  Status failed(const char* call, abi::Result result) const;

  const std::shared_ptr<PluginContext> context_;
  PluginTable& table_;
  void* const comm_;
  const Kind kind_;
  std::uint32_t peer_;
  std::vector<Registration> registrations_;
  std::array<Request, kWindow> requests_{};
  std::array<SinkAt, kWindow> sinks_{};  ///< By request; the plugin points there.
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  bool is_at_rest_ = true;  ///< No request was done since rest().
  alignas(64) std::array<std::byte, 128> small_{};
};

}  // namespace lightcc
