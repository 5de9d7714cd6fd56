// The sending end of a plugin channel.
//
// Messages wait in one queue; their pieces go round the channel's connections in a fixed order,
// straight out of the caller's memory, as many at a time as a plugin promises to take. A message is
// done when the plugin says so of all its pieces, and they finish in order.
//
// A receiver that takes nothing of what was sent to it for user_timeout is a failure, as with TCP;
// that also bounds what a plugin can hide that does not notice a dead peer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/transport/message_queue.hpp"
#include "lightcc/transport/plugin/plugin_comm.hpp"
#include "lightcc/transport/plugin/plugin_frame.hpp"
#include "lightcc/transport/plugin/plugin_library.hpp"
#include "lightcc/transport/plugin/plugin_loop.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

struct PluginSenderOptions {
  std::shared_ptr<PluginContext> context;
  int device = 0;
  PluginHandle peer;  ///< The listener.
  std::string secret;
  PluginHello hello;  ///< Of connection 0; the others differ in the index only.
  Duration connect_timeout{};
  Duration user_timeout{};
};

class PluginSendChannel final : public SendChannel, private PluginSink {
 public:
  PluginSendChannel(std::shared_ptr<PluginLoop> loop, const PluginSenderOptions& options);
  PluginSendChannel(const PluginSendChannel&) = delete;
  PluginSendChannel& operator=(const PluginSendChannel&) = delete;
  ~PluginSendChannel() override;

  Result<RequestId> isend(std::span<const std::byte> data) override;
  Result<bool> test(RequestId request) override;
  void cancel() override;

 private:
  struct Message {
    std::span<std::byte> data;  ///< Only read; the ABI has no const.
    std::uint64_t pieces_left = 0;
  };
  struct Connection {
    /// A plugin may keep the state of a connection under way in here.
    alignas(16) NcclHandle handle{};
    std::unique_ptr<PluginComm> comm;
    PluginHelloBytes hello{};
    bool has_greeted = false;  ///< The hello is on its way.
  };

  bool is_active() const override;
  bool pump() override;

  bool advance();
  bool advance_connection(Connection& connection);
  bool settle(Connection& connection);
  bool post_pieces();
  bool is_late() const;
  void finish_piece(RequestId message);
  void fail(const Status& status);

  std::shared_ptr<PluginLoop> loop_;
  const std::shared_ptr<PluginContext> context_;
  const int device_;
  const std::uint32_t peer_;
  const std::size_t piece_bytes_;
  const Duration connect_timeout_;
  const Duration user_timeout_;
  std::vector<Connection> connections_;
  std::size_t greeting_ = 0;  ///< Connections that have not greeted.
  Duration progressed_;       ///< Attended time when something last moved.
  MessageQueue<Message> queue_;
  RequestId cut_message_ = 0;   ///< Where the next piece is cut off: this message,
  std::size_t cut_offset_ = 0;  ///< from this byte on,
  std::size_t turn_ = 0;        ///< for this connection.
};

}  // namespace lightcc
